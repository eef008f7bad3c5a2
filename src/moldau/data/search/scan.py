"""Scans stored batches for matches, forwards or backwards. Runs in a thread.

Within a partition the order is that of offsets. For the merge of partitions each hit has a rank:
its timestamp, but a batch that is out of order moves the ranks behind it, so that a rank is known
without reading the rest of the partition. Oldest first, a rank is at least the first timestamp of
each earlier batch; newest first, it is at most the largest timestamp of each later batch.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from moldau.data.search.filters import JsonTooLargeError, Matcher
from moldau.data.search.types import ABORT, COMMIT, RECORD, Hit, Unreadable
from moldau.data.stored_batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from moldau.model.ids import Offset
from moldau.records.batch import (
    HEADER_BYTES,
    BatchFormatError,
    BatchHeader,
    crc_matches,
    read_header,
)
from moldau.records.control import read_end_marker
from moldau.records.places import find_places, read_place
from moldau.records.record import Record, open_body
from moldau.replica.aborted_transactions import AbortedTransaction

HEADERS_BYTES_MAX: Final = 64 * 1024
"""Of one hit; others are left out, and the hit is marked as cut."""
UNREADABLE_MAX: Final = 100
"""Named in one piece; it ends there."""


class Stored(NamedTuple):
    """Whole batches that were read from a log."""

    data: bytes
    aborted: Sequence[AbortedTransaction]


class Scan:
    """The scan of one piece of a partition, over several reads."""

    def __init__(
        self,
        matcher: Matcher,
        *,
        newest: bool,
        position: int,
        stop: int,
        reached: int | None,
        limit: int,
        bytes_max: int,
        value_max: int,
        is_over: Callable[[], bool],
    ) -> None:
        """`position` and `stop`: as in PieceWanted. `is_over`: whether its time is over."""
        self._matcher = matcher
        self._newest = newest
        self.position = position
        self.stop = stop
        self.reached = reached
        self._limit = limit
        self.bytes_left = bytes_max
        self._value_max = value_max
        self._is_over = is_over
        self.hits: list[Hit] = []
        self.unreadable: list[Unreadable] = []
        self.bytes_searched = 0
        self.bytes_read = 0
        self.batches = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.hits) >= self._limit
            or self.bytes_left <= 0
            or len(self.unreadable) >= UNREADABLE_MAX
        )

    def run(self, stored: Stored) -> bool:
        """Goes through these batches; False if it ended before their end."""
        data, aborted = stored
        batches = list(self._batches(data))
        for at, header in reversed(batches) if self._newest else batches:
            if self.is_full or (self.batches and self._is_over()):
                return False
            self.batches += 1
            if not self._search(data, at, header, aborted):
                return False
        return True

    def count(self, stored: Stored) -> int:
        """The messages of these batches from the position on, looking at headers only where that
        is enough. Oldest first only. Raises BatchFormatError."""
        data, aborted = stored
        total = 0
        for at, header in self._batches(data):
            if header.is_control:
                total += self._matcher.wanted.shows_markers and header.record_count
            elif not _is_hidden(header, aborted):
                total += _count_from(data, at, header, self.position)
        return total

    def _batches(self, data: bytes) -> list[tuple[int, BatchHeader]]:
        """Those with something to look at. Raises BatchFormatError."""
        found = []
        position = 0
        while len(data) - position >= HEADER_BYTES:
            header = read_header(data, position)
            if position + header.size > len(data):
                break
            if self._newest:
                if header.base_offset >= self.position:
                    break
                is_left = header.next_offset > self.stop
            else:
                if header.base_offset >= self.stop:
                    break
                is_left = header.next_offset > self.position
            if is_left:
                found.append((position, header))
            position += header.size
        return found

    def _search(
        self, data: bytes, at: int, header: BatchHeader, aborted: Sequence[AbortedTransaction]
    ) -> bool:
        """False: it goes on inside this batch."""
        if header.record_count and not _is_hidden(header, aborted):
            if not header.is_control:
                if not self._search_records(data, at, header):
                    return False
                self._pass(header)
            elif self._matcher.wanted.shows_markers:
                self._show_marker(data, at, header)
                self._pass(header)
        self.position = header.base_offset if self._newest else header.next_offset
        self.bytes_searched += header.size
        return True

    def _pass(self, header: BatchHeader) -> None:
        if self._newest:
            time: int = header.max_timestamp
            self.reached = time if self.reached is None else min(self.reached, time)
        else:
            time = header.max_timestamp if header.is_append_time else header.base_timestamp
            self.reached = time if self.reached is None else max(self.reached, time)

    def _rank(self, timestamp: int) -> int:
        if self.reached is None:
            return timestamp
        return min(self.reached, timestamp) if self._newest else max(self.reached, timestamp)

    def _show_marker(self, data: bytes, at: int, header: BatchHeader) -> None:
        try:
            marker = read_end_marker(data, at)
        except BatchFormatError:
            return
        if marker is not None:
            time = header.max_timestamp
            kind = COMMIT if marker.is_commit else ABORT
            record = Record(header.base_offset, time, None, None, [])
            self._add(record, kind)

    def _search_records(self, data: bytes, at: int, header: BatchHeader) -> bool:
        """False: it is full, or its time is over, and it goes on inside this batch."""
        try:
            body = _open(data, at, header)
            self.bytes_read += len(body)
            needle = self._matcher.needle_in(body)
            if needle is None:
                return True
            if self._newest:
                first, last = self.stop, self.position - 1
            else:
                first, last = self.position, self.stop - 1
            places = find_places(header, body, needle, first, last)
        except BatchFormatError as error:
            first, last = header.base_offset, header.next_offset - 1
            self.unreadable.append(Unreadable(first, last, str(error)))
            return True
        for number, place in enumerate(reversed(places) if self._newest else places):
            # A small batch may hold large values: its first one is searched in any case.
            if self.is_full or (number and self._is_over()):
                return False
            try:
                record = read_place(body, place)
                if self._matcher.matches(record):
                    self._add(record, RECORD)
            except (BatchFormatError, JsonTooLargeError) as error:
                self.unreadable.append(Unreadable(place.offset, place.offset, str(error)))
            self.position = place.offset if self._newest else place.offset + 1
        return True

    def _add(self, record: Record, kind: int) -> None:
        hit = _cut(record, kind, self._rank(record.timestamp), self.reached, self._value_max)
        self.hits.append(hit)
        self.bytes_left -= hit.size


def _count_from(data: bytes, at: int, header: BatchHeader, offset: int) -> int:
    count = header.record_count
    if offset <= header.base_offset:
        return count
    left = header.next_offset - offset
    if count == header.last_offset_delta + 1:
        return left
    try:
        body = _open(data, at, header)
        return len(find_places(header, body, b"", offset, header.next_offset))
    except BatchFormatError:
        return min(count, left)


def _is_hidden(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    """Whether its transaction was aborted."""
    return (
        header.is_transactional
        and not header.is_control
        and any(
            span.producer_id == header.producer_id and span.first <= header.base_offset <= span.last
            for span in aborted
        )
    )


def _open(data: bytes, at: int, header: BatchHeader) -> bytes:
    """Its body. Raises BatchFormatError, also above the limits."""
    if header.record_count > BATCH_RECORDS_MAX:
        raise BatchFormatError(
            f"the batch has {header.record_count} records; the limit is {BATCH_RECORDS_MAX}"
        )
    if not crc_matches(data, at, header.size, header.crc):
        raise BatchFormatError("checksum mismatch in the batch")
    with memoryview(data) as whole, whole[at : at + header.size] as batch:
        return open_body(batch, header, bytes_max=BATCH_BYTES_MAX)


def _cut(record: Record, kind: int, rank: int, reached: int | None, value_max: int) -> Hit:
    key, value, is_cut = record.key, record.value, False
    value_bytes = len(value) if value is not None else 0
    if key is not None and len(key) > value_max:
        key, is_cut = key[:value_max], True
    if value is not None and value_bytes > value_max:
        value, is_cut = value[:value_max], True
    headers: list[tuple[bytes, bytes | None]] = []
    left = HEADERS_BYTES_MAX
    for name, content in record.headers:
        raw = name.encode("utf-8", "surrogateescape")
        left -= len(raw) + len(content or b"")
        if left < 0:
            is_cut = True
            break
        headers.append((raw, content))
    size = len(key or b"") + len(value or b"") + HEADERS_BYTES_MAX - max(left, 0)
    return Hit(
        offset=Offset(record.offset),
        timestamp=record.timestamp,
        rank=rank,
        reached=reached,
        key=key,
        value=value,
        headers=headers,
        kind=kind,
        value_bytes=value_bytes,
        is_cut=is_cut,
        size=size,
    )
