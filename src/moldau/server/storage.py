"""A broker's data directory: lock, identity, votes, logs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from moldau.log.datadir import (
    MACHINE_FILE,
    METADATA_PATH,
    RECOVERY_FILE,
    VOTES_PATH,
    Identity,
    delete_partition,
    keep_machine,
    kept_machine,
    list_partitions,
    move_to_strays,
    partition_path,
    purge_deleted,
    read_identity,
    write_identity,
)
from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.flush_failure import read_fence, rewrite_unflushed, write_fence
from moldau.log.format_file import check_format, write_format
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.secret_file import ClusterSecret, read_secret, write_secret
from moldau.log.vote_journal import VoteJournal
from moldau.metadata.image import Image
from moldau.model import log_events as events
from moldau.model.errors import ConfigError, CorruptionError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import FIRST_LOG, BrokerId, LogId, PartitionIndex, TopicId
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Lock, Machine
from moldau.server.node.process import REMOVED_FILE

log = logging.getLogger(__name__)

METADATA_LOG: Final = LogConfig(
    segment_bytes_max=64 * 1024 * 1024,
    retention_ms=-1,
    delete_expired=False,
    flush=FlushPolicy.ALWAYS,
)

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
"""As in Kafka, where the metadata log has this id in every cluster."""


def _check_votes(files: Files) -> None:
    """A member without its vote journal could vote twice in an epoch. Raises CorruptionError."""
    if not files.exists(VOTES_PATH):
        raise CorruptionError(
            f"the file {VOTES_PATH} is missing in the data directory of a cluster member: nothing "
            "was changed; restore it from a backup, or start with an empty directory and join as "
            "a new broker"
        )


def _check_recovery(files: Files, root: Path) -> None:
    """A directory in which a part of a recovery is done fits to no cluster. Raises ConfigError."""
    if files.exists(RECOVERY_FILE):
        error = ConfigError(f"the recovery of the data directory {root} is not complete")
        error.hint = (
            f"complete it: moldau cluster recover apply {root / RECOVERY_FILE} --data-dir {root}"
        )
        raise error


def rewrite_after_failure(files: Files) -> None:
    """If the disk failed in the last run: rewrite what it may have lost."""
    reason = read_fence(files)
    if reason is None:
        return
    logs = [partition_path(*place) for place in list_partitions(files)]
    log.warning(
        "the last run stopped because its disk failed (%s): rewriting the ends of %d logs before "
        "anything is acknowledged",
        reason or "reason unknown",
        len(logs) + 1,
        extra=events.RESTARTED_AFTER_DISK_FAILURE(),
    )
    rewrite_unflushed(files, [METADATA_PATH, *logs], [VOTES_PATH])


def machine_for(files: Files, host_name: str) -> str:
    """The machine of a broker whose configuration names none: the host name of its first start, so
    that a container, which gets another one at each start, stays where it was."""
    kept = kept_machine(files)
    if kept is None:
        if host_name:
            try:
                keep_machine(files, host_name)
            except OSError as error:
                # A full disk, perhaps, and the operator starts the broker to make room.
                log.info("the name of this machine is not stored now: %s", error)
        return host_name
    if kept != host_name:
        log.info(
            "the machine of this broker is %s, as at its first start, though the host name is %s; "
            "if its data directory has moved to another machine, set machine, or delete the file "
            "%s in it",
            kept,
            host_name,
            MACHINE_FILE,
        )
    return kept


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Raises StorageError for every OSError, which is its cause."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error}") from error


class Storage:
    """A data directory, locked while it is open."""

    def __init__(
        self,
        root: Path,
        lock: Lock,
        files: Files,
        identity: Identity | None,
        machine: Machine,
        machine_name: str,
    ) -> None:
        self.root = root
        self.machine_name = machine_name
        """Where its broker is, unless the configuration says so."""
        self._machine = machine
        self._lock = lock
        self._files = files
        self.identity = identity
        """None: the directory is new."""
        if identity is not None and identity.cluster_id is not None:
            _check_votes(files)
        self.votes = VoteJournal.open(files, VOTES_PATH)

    @classmethod
    def open(cls, config: ServerConfig, machine: Machine) -> "Storage":
        """Raises ConfigError, CorruptionError or StorageError; the lock is free again then."""
        root = Path(config.data_dir).absolute()
        files, lock = machine.open_directory(root)
        try:
            with _storage_errors(f"cannot read data directory {root}"):
                check_format(files)
                _check_recovery(files, root)
                identity = read_identity(files)
                write_format(files)
                purge_deleted(files)
                rewrite_after_failure(files)
                name = config.machine or machine_for(files, machine.host_name())
                return cls(root, lock, files, identity, machine, name)
        except BaseException:
            lock.release()
            raise

    def become(self, identity: Identity) -> None:
        """Write the directory's identity durably. Raises StorageError."""
        with _storage_errors(f"cannot write to data directory {self.root}"):
            write_identity(self._files, identity)
        self.identity = identity

    def read_secret(self) -> ClusterSecret | None:
        """The secret of the cluster, if it is here. Raises CorruptionError, StorageError."""
        with _storage_errors(f"cannot read data directory {self.root}"):
            return read_secret(self._files)

    def write_secret(self, secret: ClusterSecret) -> None:
        """Durable when it returns. Raises StorageError."""
        with _storage_errors(f"cannot write to data directory {self.root}"):
            write_secret(self._files, secret)

    @property
    def has_metadata(self) -> bool:
        """Whether there is a metadata log: none is created before the identity is known."""
        return self.identity is not None and bool(self._files.listdir(METADATA_PATH))

    def finish_bootstrap(self) -> None:
        """The cluster exists: metadata that is missing later was lost. Raises StorageError."""
        if self.identity is not None and self.identity.is_bootstrapping:
            self.become(replace(self.identity, is_bootstrapping=False))

    def open_log(
        self,
        topic: str,
        topic_id: TopicId,
        partition: PartitionIndex,
        config: LogConfig,
        new_id: LogId,
    ) -> PartitionLog:
        path = partition_path(topic, topic_id, partition)
        return open_disk_log(self._files, path, config, new_id)

    def find_logs(self) -> list[tuple[str, TopicId, PartitionIndex]]:
        """All partitions with a log here. Raises StorageError."""
        with _storage_errors(f"cannot list the logs in {self.root}"):
            return list_partitions(self._files)

    def move_to_strays(self, topic: str, topic_id: TopicId, partition: PartitionIndex) -> str:
        """Move a log to the folder for stray logs; returns its new path. Raises StorageError."""
        with _storage_errors(f"cannot move the log of {topic}-{partition}"):
            return move_to_strays(self._files, topic, topic_id, partition)

    def set_strays_aside(self, image: Image, me: BrokerId) -> None:
        """Move logs away, left by a crash, whose partitions have no replica here.

        They are not deleted: restored metadata may be older than the logs. Raises StorageError.
        """
        strays = []
        for name, topic_id, index in self.find_logs():
            topic = image.topic_by_id(topic_id)
            if topic is None or not any(
                partition.index == index and me in partition.replicas
                for partition in topic.partitions
            ):
                strays.append((name, topic_id, index))
        for stray in strays:
            place = self.move_to_strays(*stray)
            log.warning(
                "found the log of a partition that has no replica on this broker; moved it to %s",
                place,
                extra=events.STRAY_LOG_FOUND(place=str(place)),
            )

    def drop_log(self, topic: str, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Delete the log of a partition that no longer has a replica here."""
        with _storage_errors(f"cannot delete the log of {topic}-{partition}"):
            delete_partition(self._files, topic, topic_id, partition)

    def open_metadata_log(self) -> PartitionLog:
        """A new log gets FIRST_LOG only at bootstrap; otherwise it must replicate from others."""
        is_first = self.identity is not None and self.identity.is_bootstrapping
        new_id = FIRST_LOG if is_first else LogId(self._machine.rng.getrandbits(62) + 1)
        return open_disk_log(self._files, METADATA_PATH, METADATA_LOG, new_id)

    def write_fence(self, error: StorageError) -> None:
        """The disk failed: the next start must not trust its page cache."""
        try:
            write_fence(self._files, str(error))
        except OSError as second:
            log.critical(
                "cannot write the file fence in %s (%s): do not start from this directory again; "
                "replace the disk, and join with an empty directory as a new broker",
                self.root,
                second,
                extra=events.DISK_FENCE_FAILED(),
            )

    def end(self, then: Callable[[], None]) -> None:
        """The broker was removed from its cluster: its directory never comes back."""
        with _storage_errors(f"cannot write to data directory {self.root}"):
            self._files.replace(REMOVED_FILE, b"")
        then()

    def free_bytes(self) -> int:
        """Raises StorageError."""
        with _storage_errors(f"cannot read the free space of {self.root}"):
            return self._files.free_bytes()

    def total_bytes(self) -> int:
        """Raises StorageError."""
        with _storage_errors(f"cannot read the free space of {self.root}"):
            return self._files.total_bytes()

    def close(self) -> None:
        self.votes.close()
        self._lock.release()
