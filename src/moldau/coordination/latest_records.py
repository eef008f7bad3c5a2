"""Selects the last record of each key when a compacted log is loaded.

Older records are never decoded. Records of a transaction take effect with its commit, but keep
their position in the log: a later record of the same key wins, even if the commit came after it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, ProducerId
from moldau.records.batch import BatchHeader
from moldau.records.record import Record

_COMMIT = 1
_MARKER_KEY_BYTES = 4


class PendingRecord(NamedTuple):
    producer_id: ProducerId
    key: bytes
    value: bytes | None


class LatestRecords:
    """Reads all records of a log in order; keeps the last one of each key."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes] = {}
        self._pending: dict[ProducerId, dict[bytes, tuple[Offset, bytes | None]]] = {}

    def add(self, header: BatchHeader, record: Record) -> None:
        """Raises CorruptionError for a malformed marker."""
        if header.is_control:
            self._end(header.producer_id, is_commit=is_commit_marker(record))
        elif record.key is None:
            return
        elif header.is_transactional:
            ours = self._pending.setdefault(header.producer_id, {})
            ours.pop(record.key, None)
            ours[record.key] = (record.offset, record.value)
        else:
            self._put(record.key, record.value, record.offset)

    def _end(self, producer_id: ProducerId, *, is_commit: bool) -> None:
        ended = self._pending.pop(producer_id, {})
        if is_commit:
            for key, (offset, value) in ended.items():
                self._put(key, value, offset)

    def _put(self, key: bytes, value: bytes | None, offset: Offset) -> None:
        if value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = value
        if self._pending:
            for theirs in self._pending.values():
                if key in theirs and theirs[key][0] < offset:
                    del theirs[key]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """The last value of each key that was not deleted."""
        return iter(self._latest.items())

    def pending(self) -> Iterator[PendingRecord]:
        """Records of open transactions, in log order."""
        found = [
            (offset, PendingRecord(producer_id, key, value))
            for producer_id, records in self._pending.items()
            for key, (offset, value) in records.items()
        ]
        found.sort(key=lambda item: item[0])
        return iter([record for _, record in found])


def is_commit_marker(record: Record) -> bool:
    """Whether a control record commits or aborts. Raises CorruptionError."""
    if record.key is None or len(record.key) < _MARKER_KEY_BYTES:
        raise CorruptionError("transaction marker has no type")
    return int.from_bytes(record.key[2:4], "big") == _COMMIT
