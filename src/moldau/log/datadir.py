"""A broker's data directory: lock, identity, and the paths of logs.

    format          the version of the formats in it (format_file.py); read before all else
    lock            locked while a broker runs; contains its pid
    broker.json     broker id, cluster id, directory id: only a recovery changes it
    machine         the machine of the broker where the configuration names none; written once
    admin.token     proves that its reader may administer the cluster; written at each start
    cluster.secret  what brokers of the cluster prove to each other (secret_file.py)
    votes           the vote journal
    recovery.json   the plan of a recovery, as long as it is not complete here
    fence           left by a broker whose disk failed (flush_failure.py)
    removed         the broker has left its cluster, and its directory never comes back
    metadata/       the log of the metadata group
    topics/<name>/<topic id>/<partition>/   one log each
    deleted/        logs of deleted topics on their way out
    node.sock       where other processes of the same node ask this one
    process-2/ …    the data directories of the other processes of the node
    strays/         logs that the metadata does not know; kept for the operator

A topic's id is in the path, so a topic that is deleted and recreated never sees its old files.
"""

import errno
import fcntl
import json
import logging
import os
import re
import stat
from pathlib import Path
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from moldau.log.filesystem import Files
from moldau.log.flush import DISK_FULL
from moldau.model import log_events as events
from moldau.model.errors import ConfigError, CorruptionError, StorageError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.layout import LOCK_FILE

log = logging.getLogger(__name__)

METADATA_PATH: Final = "metadata"
VOTES_PATH: Final = "votes"
RECOVERY_FILE: Final = "recovery.json"
MACHINE_FILE: Final = "machine"
_TOPICS: Final = "topics"
_DELETED: Final = "deleted"
_STRAYS: Final = "strays"
IDENTITY_FILE: Final = "broker.json"
_BOOTSTRAP_MARK: Final = "founding"
_BOOTSTRAP_KEY: Final = f"is_{_BOOTSTRAP_MARK}"
"""As stored since the first version."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")


class Identity(Struct, frozen=True, kw_only=True):
    """The broker and cluster that a data directory belongs to."""

    broker_id: BrokerId | None
    """None, as is the cluster id, until the broker has joined a cluster and got its id."""
    cluster_id: str | None
    directory_id: str
    metadata_voters: tuple[BrokerId, ...] = ()
    """Of the metadata group when this directory joined; a bootstrap broker is the only one."""
    is_bootstrapping: bool = False
    """The first start of a bootstrap broker is not complete: there may be no metadata yet."""

    @property
    def is_bootstrap_broker(self) -> bool:
        return self.metadata_voters == (self.broker_id,)


class DirectoryLock:
    """Prevents a second broker. The operating system releases it when the process exits."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises ConfigError if another process has it, or if the directory cannot be used."""
        try:
            # Its own files are for no one else; directories above it are left as they are.
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(
                self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(
                f"cannot create the data directory {self._root}: this path, or a parent of it, is "
                "not a directory; choose another with --data-dir"
            ) from None
        except OSError as error:
            raise self._unusable(error) from None
        self._lock(descriptor)
        self._warn_of_other_users()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def acquire_unchanged(self) -> None:
        """The same for one who only reads, and writes nothing, not even its pid.

        Raises ConfigError, also if the directory is not that of a broker.
        """
        if not (self._root / IDENTITY_FILE).is_file():
            raise ConfigError(f"{self._root} is not the data directory of a broker")
        try:
            descriptor = os.open(self._root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # A copy: no broker ever started here.
            return
        except OSError as error:
            raise self._unusable(error) from None
        self._lock(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigError(
                f"the data directory {self._root} is in use by another broker (pid {holder}); "
                "stop it, or choose another with --data-dir"
            ) from None
        self._descriptor = descriptor

    def _unusable(self, error: OSError) -> ConfigError:
        """With the remedy, above all for volumes of containers."""
        failure = ConfigError(
            f"cannot create or write to the data directory {self._root}: {error.strerror}"
        )
        # What exists of the path: usually the directory, or the mount above it.
        place = next(each for each in (self._root, *self._root.parents) if each.exists())
        me, owner = os.geteuid(), place.stat().st_uid
        if error.errno == errno.EROFS:
            failure.hint = "mount a volume there that can be written, or choose another: --data-dir"
        elif error.errno == errno.EACCES and owner != me:
            failure.hint = (
                f"{place} belongs to user {owner}, and this process runs as user {me}: "
                f"chown -R {me}:{os.getegid()} {place} (in Kubernetes set "
                "securityContext.fsGroup), or choose another: --data-dir"
            )
        else:
            failure.hint = "check its permissions, or choose another: --data-dir"
        return failure

    def _warn_of_other_users(self) -> None:
        """A directory that existed before keeps its mode: it may be one of the system."""
        if stat.S_IMODE(self._root.stat().st_mode) & 0o077:
            log.warning(
                "other users can read the data directory %s; protect it: chmod 700 %s",
                self._root,
                self._root,
                extra=events.DATA_DIR_READABLE(),
            )

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _checksum(identity: Identity) -> str:
    voters = ",".join(str(voter) for voter in identity.metadata_voters)
    text = f"{identity.broker_id} {identity.cluster_id} {identity.directory_id} {voters}"
    if identity.is_bootstrapping:
        text += f" {_BOOTSTRAP_MARK}"
    return f"{crc32c(text.encode()):08x}"


def read_identity(files: Files) -> Identity | None:
    """The directory's identity; None if it is new. Raises CorruptionError."""
    if not files.exists(IDENTITY_FILE):
        if files.listdir(_TOPICS) or files.listdir(METADATA_PATH):
            raise CorruptionError(
                f"{IDENTITY_FILE} is missing, but the data directory contains logs. Restore the "
                "file from a backup: without it the broker does not know which cluster they "
                "belong to"
            )
        return None
    try:
        entry = json.loads(files.read(IDENTITY_FILE))
        number, cluster = entry["broker_id"], entry["cluster_id"]
        found = Identity(
            broker_id=None if number is None else BrokerId(int(number)),
            cluster_id=None if cluster is None else str(cluster),
            directory_id=str(entry["directory_id"]),
            metadata_voters=tuple(BrokerId(int(voter)) for voter in entry["metadata_voters"]),
            is_bootstrapping=bool(entry.get(_BOOTSTRAP_KEY, False)),
        )
        # One flipped bit could make it a broker of another cluster.
        if entry["checksum"] != _checksum(found):
            raise ValueError("checksum mismatch; restore the file from a backup")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{IDENTITY_FILE} cannot be read: {error}") from None
    return found


def write_identity(files: Files, identity: Identity) -> None:
    """Durable when it returns."""
    entry: dict[str, object] = {
        "broker_id": identity.broker_id,
        "cluster_id": identity.cluster_id,
        "directory_id": identity.directory_id,
        "metadata_voters": identity.metadata_voters,
        "checksum": _checksum(identity),
    }
    if identity.is_bootstrapping:
        entry[_BOOTSTRAP_KEY] = True
    files.replace(IDENTITY_FILE, json.dumps(entry, indent=2).encode() + b"\n")


def partition_path(name: str, topic_id: TopicId, partition: PartitionIndex) -> str:
    """The directory of a partition's log. Names that could leave `topics` are rejected."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise StorageError(f"{name!r} is not a valid directory name")
    return f"{_TOPICS}/{name}/{topic_id.hex()}/{int(partition)}"


def kept_machine(files: Files) -> str | None:
    """The machine that the directory was given when it was first used; None: it has none yet."""
    if not files.exists(MACHINE_FILE):
        return None
    return files.read(MACHINE_FILE).decode(errors="replace").strip() or None


def keep_machine(files: Files, name: str) -> None:
    """Durable when it returns."""
    files.replace(MACHINE_FILE, name.encode() + b"\n")


def list_partitions(files: Files) -> list[tuple[str, TopicId, PartitionIndex]]:
    """Every partition that has a directory; other files are ignored."""
    found = []
    for name in files.listdir(_TOPICS):
        for text in _entries(files, f"{_TOPICS}/{name}"):
            if _TOPIC_ID.fullmatch(text) is None:
                continue
            for number in _entries(files, f"{_TOPICS}/{name}/{text}"):
                if number.isdecimal():
                    topic_id = TopicId(bytes.fromhex(text))
                    found.append((name, topic_id, PartitionIndex(int(number))))
    return found


def move_to_strays(files: Files, name: str, topic_id: TopicId, partition: PartitionIndex) -> str:
    """Move a log that the metadata does not know to `strays`; returns its new path."""
    path = target = f"{_STRAYS}/{name}-{topic_id.hex()}-{int(partition)}"
    files.makedirs(_STRAYS)
    number = 1
    while files.exists(target):
        # Moved earlier: keep both.
        number += 1
        target = f"{path}-{number}"
    files.rename(partition_path(name, topic_id, partition), target)
    _remove_empty(files, name, topic_id)
    return target


def _entries(files: Files, path: str) -> list[str]:
    try:
        return files.listdir(path)
    except NotADirectoryError:
        return []


def delete_partition(files: Files, name: str, topic_id: TopicId, partition: PartitionIndex) -> None:
    """Durably move a log to `deleted`, then remove it. After a crash, purge_deleted finishes it."""
    path = partition_path(name, topic_id, partition)
    target = f"{_DELETED}/{topic_id.hex()}-{int(partition)}"
    if files.exists(path):
        try:
            files.makedirs(_DELETED)
            if files.exists(target):
                files.remove_tree(target)
            files.rename(path, target)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            # Topics are deleted to free space: if there is none to move it, remove it in place.
            target = path
        files.remove_tree(target)
    _remove_empty(files, name, topic_id)


def _remove_empty(files: Files, name: str, topic_id: TopicId) -> None:
    """Remove the directories of a topic without logs."""
    for parent in (f"{_TOPICS}/{name}/{topic_id.hex()}", f"{_TOPICS}/{name}"):
        files.remove_dir(parent)


def purge_deleted(files: Files) -> None:
    """Finish deletions that a crash interrupted."""
    for name in files.listdir(_DELETED):
        files.remove_tree(f"{_DELETED}/{name}")
