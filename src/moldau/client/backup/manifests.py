"""What a backup directory contains, and the manifests that say which files make up each backup.

    moldau-backup.json               which cluster, and the id of this chain of backups
    manifests/000001.json            one per backup, written last: without it there is no backup
    data/<topic id>/<partition>/<start>-<end>-<bytes>-<crc32c>.batches
                                     a run of record batches, as the brokers store them

A manifest names all files that its backup needs, also those that earlier backups wrote. So each is
complete by itself, and an old one can be deleted with the files that no other one names.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c
from msgspec import Struct

from moldau.client.backup.stores import BackupStore
from moldau.client.errors import ClientError, NotFoundError
from moldau.model.backup import ClusterCopy, QueueStateCopy

FORMAT: Final = 1
_MARK_PATH: Final = "moldau-backup.json"
_MANIFESTS: Final = "manifests"
_DATA: Final = "data"
_SUFFIX: Final = ".batches"
_HEAD: Final = "moldau-backup-manifest"
_encoder: Final = msgspec.json.Encoder()

T = TypeVar("T")


class BackupDamagedError(ClientError):
    """A file of a backup is missing, or not what was written."""


class Mark(Struct, frozen=True, kw_only=True):
    """The first file that is written."""

    format: int
    id: str
    cluster_id: str


class Segment(NamedTuple):
    """One file of batches: the offsets from `start` to before `end`."""

    start: int
    end: int
    size: int
    crc: int

    def path(self, topic_id: str, partition: int) -> str:
        name = f"{self.start:020d}-{self.end:020d}-{self.size}-{self.crc:08x}{_SUFFIX}"
        return f"{_folder(topic_id, partition)}/{name}"


class PartitionCopy(Struct, frozen=True, kw_only=True):
    """The offsets from `start` to before `end` of a partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    markers: tuple[bytes, ...] = ()
    """Of transactions that had ended, with a marker after `end`; appended when restored."""
    segments: tuple[Segment, ...] = ()
    """The first may begin before `start`: with the batch that has it."""
    last_crc: int = -1
    """Of the batch before `end`, by which the next backup knows the log again; -1: of none."""
    last_epoch: int = -1
    """Its leader epoch. An older version does not say."""

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


class GroupCopy(Struct, frozen=True, kw_only=True):
    name: str
    offsets: tuple[tuple[str, int, int, str], ...]
    """Topic, partition, offset, and the metadata of the commit."""


class QueueCopy(Struct, frozen=True, kw_only=True):
    """The state of a queue on the partitions of one topic."""

    group: str
    topic: str
    partitions: tuple[QueueStateCopy, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """One backup."""

    format: int = FORMAT
    id: str
    number: int
    started_ms: int
    finished_ms: int
    cluster: ClusterCopy
    partitions: tuple[PartitionCopy, ...]
    groups: tuple[GroupCopy, ...] = ()
    queues: tuple[QueueCopy, ...] = ()
    selection: tuple[str, ...] = ()
    """The patterns that chose the topics, sorted; none: all topics."""

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.partitions)

    @property
    def offsets(self) -> int:
        return sum(partition.end - partition.start for partition in self.partitions)


def load_mark(store: BackupStore) -> Mark | None:
    """None if there is no backup. Raises BackupDamagedError."""
    try:
        mark = _decoded(store.get(_MARK_PATH), Mark, f"{store.place}/{_MARK_PATH}")
    except (NotFoundError, BackupDamagedError) as error:
        # Manifests say the same: no backup is lost with it.
        for number in reversed(manifest_numbers(store)):
            with suppress(BackupDamagedError):
                found = load_manifest(store, number)
                return Mark(format=FORMAT, id=found.id, cluster_id=found.cluster.cluster_id)
        if isinstance(error, BackupDamagedError):
            raise
        return None
    _check_format(mark.format, store)
    return mark


def require_mark(store: BackupStore) -> Mark:
    """Raises NotFoundError if there is no backup."""
    mark = load_mark(store)
    if mark is None:
        raise NotFoundError(
            f"{store.place} is not a backup: it has no {_MARK_PATH}",
            hint="name the directory that was given to: moldau backup create",
        )
    return mark


def make_mark(store: BackupStore, mark: Mark) -> None:
    """Raises ClientError if the place has other files: they are not of a backup."""
    others = store.names("")
    if others:
        raise ClientError(
            f"{store.place} is not empty and not a backup (it contains {others[0]})",
            hint="choose an empty or new directory",
        )
    store.put(_MARK_PATH, _encoder.encode(mark) + b"\n")


def manifest_numbers(store: BackupStore) -> list[int]:
    """Of all finished backups, ascending."""
    names = (name.removesuffix(".json") for name in store.names(_MANIFESTS))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def load_manifest(store: BackupStore, number: int) -> Manifest:
    """Raises NotFoundError, BackupDamagedError."""
    path = _manifest_path(number)
    data = store.get(path)
    head, _, body = data.partition(b"\n")
    if head != _head_of(body):
        raise BackupDamagedError(
            f"{store.place}/{path} is damaged: checksum mismatch",
            hint="the other backups do not need it: moldau backup list · delete that file when one "
            "of them, or a new one, is enough",
        )
    manifest = _decoded(body, Manifest, path)
    _check_format(manifest.format, store)
    return manifest


def save_manifest(store: BackupStore, manifest: Manifest) -> None:
    """With this the backup exists. Raises ClientError if another command has made one."""
    path = _manifest_path(manifest.number)
    if manifest.number in manifest_numbers(store):
        raise ClientError(
            f"another command has written backup {manifest.number} to {store.place} meanwhile",
            hint="repeat the command",
        )
    body = msgspec.json.format(_encoder.encode(manifest), indent=1)
    store.put(path, _head_of(body) + b"\n" + body)


def delete_manifest(store: BackupStore, number: int) -> None:
    store.delete(_manifest_path(number))


def found_segments(store: BackupStore, topic_id: str, partition: int) -> list[Segment]:
    """The files of a partition, of whatever backup; also of one that was cut short."""
    return sorted(
        segment
        for name in store.names(_folder(topic_id, partition))
        if (segment := _segment_of(name)) is not None
    )


def check_files(store: BackupStore, copies: Iterable[PartitionCopy]) -> None:
    """Raises BackupDamagedError if a file is missing. They are not read."""
    for copy in copies:
        there = set(found_segments(store, copy.topic_id, copy.partition)) if copy.segments else ()
        for segment in copy.segments:
            if segment not in there:
                raise _missing(store, copy, segment)


def data_paths(store: BackupStore) -> list[str]:
    """All files of batches."""
    return [
        f"{_DATA}/{topic}/{partition}/{name}"
        for topic in store.names(_DATA)
        for partition in store.names(f"{_DATA}/{topic}")
        for name in store.names(f"{_DATA}/{topic}/{partition}")
    ]


def read_segment(store: BackupStore, copy: PartitionCopy, segment: Segment) -> bytes:
    """The batches of a file, as they were written. Raises BackupDamagedError."""
    path = segment.path(copy.topic_id, copy.partition)
    try:
        data = store.get(path)
    except NotFoundError:
        raise _missing(store, copy, segment) from None
    if len(data) != segment.size or crc32c(data) != segment.crc:
        raise BackupDamagedError(
            f"{store.place}/{path} is damaged ({copy.topic}-{copy.partition})", hint=_DAMAGED_HINT
        )
    return data


def _missing(store: BackupStore, copy: PartitionCopy, segment: Segment) -> BackupDamagedError:
    path = segment.path(copy.topic_id, copy.partition)
    return BackupDamagedError(
        f"{store.place}/{path} is missing ({copy.topic}-{copy.partition})", hint=_DAMAGED_HINT
    )


_DAMAGED_HINT: Final = (
    "the other topics can be restored: moldau backup restore --topic · make a backup in a new "
    "directory while the cluster is there"
)


def _segment_of(name: str) -> Segment | None:
    parts = name.removesuffix(_SUFFIX).split("-")
    try:
        start, end, size, crc = parts
        return Segment(int(start), int(end), int(size), int(crc, 16))
    except ValueError:
        return None


def _folder(topic_id: str, partition: int) -> str:
    return f"{_DATA}/{topic_id}/{partition}"


def _manifest_path(number: int) -> str:
    return f"{_MANIFESTS}/{number:06d}.json"


def _head_of(body: bytes) -> bytes:
    return f"{_HEAD} {crc32c(body):08x}".encode()


def _check_format(found: int, store: BackupStore) -> None:
    if found > FORMAT:
        raise ClientError(
            f"the backup in {store.place} has format {found}, this version reads {FORMAT}",
            hint="use the version of moldau that wrote it, or a newer one",
        )


def _decoded(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupDamagedError(f"{where} is damaged: {error}") from None
