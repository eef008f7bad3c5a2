"""Verifies a backup: reads every file, and compares with a cluster where one is given."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.client.backup.batch_source import StartMovedError, StoredBatch, stored_batches
from moldau.client.backup.manifests import (
    BackupDamagedError,
    Manifest,
    PartitionCopy,
    read_segment,
)
from moldau.client.backup.source import Clients, Source
from moldau.client.backup.stores import BackupStore
from moldau.client.backup.work import PARALLEL_DEFAULT, Pace, run_all
from moldau.client.errors import NotFoundError
from moldau.records.batch import CRC_AT, BatchFormatError
from moldau.records.compact import is_filler
from moldau.records.record import Record, read_records
from moldau.records.runs import read_run


class PartitionCheck(NamedTuple):
    """The result for one partition; `problem` is empty if all is well."""

    topic: str
    partition: int
    start: int
    end: int
    batches: int
    size: int
    problem: str = ""


def backup_batches(store: BackupStore, copy: PartitionCopy) -> Iterator[StoredBatch]:
    """All batches of a partition that have offsets from its start on.

    Raises BackupDamagedError if one is missing or damaged.
    """
    expected = copy.segments[0].start if copy.segments else copy.start
    if expected > copy.start:
        raise _damaged(copy, f"offsets {copy.start} to {expected - 1} are missing")
    for segment in copy.segments:
        if segment.start != expected:
            raise _damaged(copy, f"offsets {expected} to {segment.start - 1} are missing")
        data = read_segment(store, copy, segment)
        try:
            headers = read_run(data, segment.start)
        except BatchFormatError as error:
            raise _damaged(copy, str(error)) from None
        position = 0
        for header in headers:
            if header.next_offset > copy.start:
                yield header, data[position : position + header.size]
            position += header.size
        expected = headers[-1].next_offset if headers else segment.start
        if expected != segment.end:
            raise _damaged(copy, f"a file ends at offset {expected} instead of {segment.end}")
    if expected != copy.end and (copy.segments or copy.start != copy.end):
        raise _damaged(copy, f"it ends at offset {expected} instead of {copy.end}")


def _damaged(copy: PartitionCopy, why: str) -> BackupDamagedError:
    return BackupDamagedError(f"{copy.topic}-{copy.partition} of the backup is damaged: {why}")


class Verifier:
    """Checks all partitions of a manifest; `against` a cluster, with other names of topics."""

    def __init__(
        self,
        store: BackupStore,
        manifest: Manifest,
        *,
        against: Source | None = None,
        name_of: Callable[[str], str] = lambda name: name,
        parallel: int = PARALLEL_DEFAULT,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._against = against
        self._name_of = name_of
        self._parallel = parallel
        self._pace = pace or Pace()
        self._clients = Clients(against)
        self._compacted: set[str] = set()
        """Topics of the cluster, which may have fewer records by now."""

    def run(self) -> list[PartitionCheck]:
        try:
            if self._against is not None:
                described = self._against.describe().topics
                self._compacted = {topic.name for topic in described if topic.compacted}
            return run_all(self._check, self._manifest.partitions, self._parallel, self._pace)
        finally:
            self._clients.close()

    def _check(self, copy: PartitionCopy) -> PartitionCheck:
        batches = 0

        def counted() -> Iterator[StoredBatch]:
            nonlocal batches
            for header, batch in backup_batches(self._store, copy):
                self._pace.add(len(batch), header.last_offset_delta + 1)
                batches += 1
                yield header, batch

        problem = ""
        try:
            read = counted()
            if self._against is not None:
                self._compare(copy, read)
            for _ in read:
                pass
        except (BackupDamagedError, _DifferentError) as error:
            problem = str(error)
        return PartitionCheck(
            copy.topic, copy.partition, copy.start, copy.end, batches, copy.size, problem
        )

    def _compare(self, copy: PartitionCopy, ours: Iterator[StoredBatch]) -> None:
        """Raises _DifferentError."""
        name = self._name_of(copy.topic)
        theirs = stored_batches(self._clients.mine(), name, copy.partition, copy.start, copy.end)
        try:
            if name in self._compacted:
                _compare_compacted(ours, theirs)
            else:
                _compare_batches(ours, theirs)
        except StartMovedError as moved:
            raise _DifferentError(f"{name}-{copy.partition}: {moved}") from None
        except NotFoundError as error:
            raise _DifferentError(str(error)) from None


class _DifferentError(Exception):
    """The cluster has something else than the backup."""


def _compare_batches(ours: Iterator[StoredBatch], theirs: Iterator[StoredBatch]) -> None:
    """Byte for byte, but for the leader epoch, which is the cluster's own."""
    others = _without_fillers(theirs)
    for header, batch in _without_fillers(ours):
        other = next(others, None)
        if other is None:
            raise _DifferentError(f"offset {header.base_offset} is missing in the cluster")
        if header.base_offset != other[0].base_offset or batch[CRC_AT:] != other[1][CRC_AT:]:
            offset = min(header.base_offset, other[0].base_offset)
            raise _DifferentError(f"the batches at offset {offset} differ")
    if (other := next(others, None)) is not None:
        raise _DifferentError(f"offset {other[0].base_offset} is missing in the backup")


def _without_fillers(batches: Iterator[StoredBatch]) -> Iterator[StoredBatch]:
    """Compaction divides and merges them as it likes."""
    return (each for each in batches if not is_filler(each[0]))


def _compare_compacted(ours: Iterator[StoredBatch], theirs: Iterator[StoredBatch]) -> None:
    """Every record of the cluster is in the backup: since then, compaction may have removed some.

    In the order of offsets, so one batch of each side is in memory.
    """
    mine = _records(ours)
    known: Record | None = None
    for record in _records(theirs):
        while known is None or known.offset < record.offset:
            known = next(mine, None)
            if known is None:
                raise _DifferentError(f"offset {record.offset} is missing in the backup")
        if known != record:
            raise _DifferentError(f"the records at offset {record.offset} differ")


def _records(batches: Iterator[StoredBatch]) -> Iterator[Record]:
    for header, batch in batches:
        if header.record_count and not header.is_control:
            yield from read_records(batch)
