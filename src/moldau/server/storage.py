"""Owns what a broker has open in its data directory: lock, identity, votes, logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from moldau.log.datadir import (
    METADATA_PATH,
    VOTES_PATH,
    Identity,
    delete_partition,
    list_partitions,
    move_to_strays,
    partition_path,
    purge_deleted,
    read_identity,
    write_identity,
)
from moldau.log.disk import open_disk_log
from moldau.log.fence import read_fence, rewrite_unflushed, write_fence
from moldau.log.filesystem import Files
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.vote_journal import VoteJournal
from moldau.metadata.image import Image
from moldau.model.errors import CorruptionError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import FIRST_LOG, BrokerId, LogId, PartitionIndex, TopicId
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Lock, Machine

log = logging.getLogger(__name__)

_METADATA_LOG: Final = LogConfig(
    segment_bytes_max=64 * 1024 * 1024,
    retention_ms=-1,
    delete_expired=False,
    flush=FlushPolicy.ALWAYS,
)

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
"""As in Kafka, where the metadata log has this id in every cluster."""


def _check_votes(files: Files) -> None:
    """Of a member: it has voted, and whoever forgets that votes a second time."""
    if not files.exists(VOTES_PATH):
        raise CorruptionError(
            f"the file {VOTES_PATH} is missing in the data directory of a member of a cluster: "
            "nothing was changed; restore it from a backup, or start with an empty directory, and "
            "join as a new broker"
        )


def _mend(files: Files) -> None:
    """If the disk failed the last time: what it may not have kept is written anew."""
    reason = read_fence(files)
    if reason is None:
        return
    logs = [partition_path(*place) for place in list_partitions(files)]
    log.warning(
        "the last broker here ended because its disk failed (%s): the ends of %d logs are written "
        "anew before anything is acknowledged",
        reason or "nobody could write why",
        len(logs) + 1,
    )
    rewrite_unflushed(files, [METADATA_PATH, *logs], [VOTES_PATH])


class Storage:
    """A data directory, locked while it is open."""

    def __init__(
        self, root: Path, lock: Lock, files: Files, identity: Identity | None, machine: Machine
    ) -> None:
        self.root = root
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
            identity = read_identity(files)
            purge_deleted(files)
            _mend(files)
            return cls(root, lock, files, identity, machine)
        except OSError as error:
            lock.release()
            raise StorageError(f"cannot use {root} as data directory: {error}") from error
        except BaseException:
            lock.release()
            raise

    def become(self, identity: Identity) -> None:
        """Give the directory its identity, durably. Raises StorageError."""
        try:
            write_identity(self._files, identity)
        except OSError as error:
            raise StorageError(f"cannot use {self.root} as data directory: {error}") from error
        self.identity = identity

    @property
    def has_metadata(self) -> bool:
        """Whether there is a log of the metadata: none is begun before it is known whose."""
        return self.identity is not None and bool(self._files.listdir(METADATA_PATH))

    def finish_bootstrap(self) -> None:
        """The cluster exists; metadata that are missing later were lost. Raises StorageError."""
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
        """Every partition that has a log here. Raises StorageError."""
        try:
            return list_partitions(self._files)
        except OSError as error:
            raise StorageError(f"{self.root} cannot be read: {error}") from error

    def move_to_strays(self, topic: str, topic_id: TopicId, partition: PartitionIndex) -> str:
        """Move a log where nobody looks for it; returns where. Raises StorageError."""
        try:
            return move_to_strays(self._files, topic, topic_id, partition)
        except OSError as error:
            raise StorageError(f"{topic}-{partition} could not be moved: {error}") from error

    def set_strays_aside(self, image: Image, me: BrokerId) -> None:
        """Move away logs that a crash left behind, of partitions that are not placed here.

        Not for good: somebody may have restored metadata that is older than the logs. Raises
        StorageError.
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
            log.warning("the metadata knows no such log here, it is set aside: %s", place)

    def drop_log(self, topic: str, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Delete the log of a partition that is no longer here."""
        try:
            delete_partition(self._files, topic, topic_id, partition)
        except OSError as error:
            raise StorageError(f"{topic}-{partition} could not be deleted: {error}") from error

    def open_metadata_log(self) -> PartitionLog:
        """A new one is the first of its cluster, or one that has to learn what others know."""
        is_first = self.identity is not None and self.identity.is_bootstrapping
        new_id = FIRST_LOG if is_first else LogId(self._machine.rng.getrandbits(62) + 1)
        return open_disk_log(self._files, METADATA_PATH, _METADATA_LOG, new_id)

    def write_fence(self, error: StorageError) -> None:
        """The disk failed: the next start must not believe what it reads."""
        try:
            write_fence(self._files, str(error))
        except OSError as second:
            log.critical(
                "the file fence could not be made in %s (%s): do not start from there again "
                "before the disk is replaced; begin with an empty directory, as a new broker",
                self.root,
                second,
            )

    def free_bytes(self) -> int:
        """Raises StorageError."""
        with self._reading_space():
            return self._files.free_bytes()

    def total_bytes(self) -> int:
        """Raises StorageError."""
        with self._reading_space():
            return self._files.total_bytes()

    @contextmanager
    def _reading_space(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot read the free space of {self.root}: {error}") from error

    def close(self) -> None:
        self.votes.close()
        self._lock.release()
