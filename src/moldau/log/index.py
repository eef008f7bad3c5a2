"""The sparse index of one segment: batch boundaries by offset, position and time.

One entry every few kilobytes of data: the offset and position at which a batch begins, and the
largest timestamp of the segment before it. Lookups find the entry and walk headers from there.

The file beside the segment is a cache. It is written in checksummed blocks, each covering a run of
*flushed* data, which never changes; truncation removes the file first. Loading stops at a missing,
torn or foreign block, and the rest is read from the batches themselves. Entries before
`loaded_from` are loaded when a lookup first needs them: opening a log reads no index.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right

from crc32c import crc32c

from moldau.log.filesystem import File
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.scan import walk_headers
from moldau.model.ids import Offset, TimestampMs

_BLOCK = struct.Struct(">4sIqqqI")
_MAGIC = b"MoIx"
_ENTRY_BYTES = 20
INDEX_SAVE_BYTES = 16 * 1024 * 1024
"""Data after which new index entries are saved: the maximum that a restart scans again."""


class SegmentIndex:
    """The entries of one segment from `loaded_from` on, in three parallel arrays."""

    __slots__ = (
        "file_bytes",
        "interval",
        "loaded_from",
        "next_position",
        "offsets",
        "positions",
        "saved_count",
        "saved_to",
        "times",
    )

    def __init__(self, position: int, interval: int) -> None:
        self.interval = interval
        self.offsets = array("q")
        self.positions = array("I")
        self.times = array("q")
        self.loaded_from = position
        """Batches below this position are not in the arrays yet."""
        self.next_position = position
        """A batch at or beyond this position gets an entry."""
        self.saved_count = 0
        """Entries that are in the file already; they cover the data up to saved_to."""
        self.saved_to = HEADER_BYTES
        self.file_bytes = 0

    def add(self, offset: Offset, position: int, time_before: TimestampMs) -> None:
        """A batch begins at `position`; the caller has checked that an entry is due."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.times.append(time_before)
        self.next_position = position + self.interval

    def note(self, offset: Offset, position: int, time_before: TimestampMs) -> int:
        """As add, for scan.check_run: returns the position from which the next entry is due."""
        self.add(offset, position, time_before)
        return self.next_position

    def floor_offset(self, offset: Offset) -> tuple[Offset, int] | None:
        """Last entry at or before `offset`."""
        place = bisect_right(self.offsets, offset) - 1
        if place < 0:
            return None
        return Offset(self.offsets[place]), self.positions[place]

    def floor_position(self, position: int) -> tuple[Offset, int] | None:
        """Last entry at or before `position`."""
        place = bisect_right(self.positions, position) - 1
        if place < 0:
            return None
        return Offset(self.offsets[place]), self.positions[place]

    def floor_time(self, timestamp: TimestampMs) -> tuple[Offset, int] | None:
        """Last entry before which no batch reaches `timestamp`."""
        place = bisect_left(self.times, timestamp) - 1
        if place < 0:
            return None
        return Offset(self.offsets[place]), self.positions[place]

    def truncate(self, position: int) -> None:
        """Forget batches at or beyond `position`. The caller has removed the file."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:], self.times[keep:]
        self.saved_count = self.file_bytes = 0
        self.saved_to = HEADER_BYTES
        self.loaded_from = min(self.loaded_from, position)
        due = self.positions[-1] + self.interval if keep else self.loaded_from
        self.next_position = max(due, position) if keep else position

    def adopt(self, part: "SegmentIndex", end: int) -> None:
        """Take over what read_index found before `end`, unless something else did meanwhile."""
        if self.loaded_from != end or end <= HEADER_BYTES:
            return
        part.offsets.extend(self.offsets)
        part.positions.extend(self.positions)
        # Entries made since the log was opened know only the times since then.
        reached = part.times[-1] if part.times else -1
        part.times.extend(array("q", [max(reached, time) for time in self.times]))
        self.offsets, self.positions, self.times = part.offsets, part.positions, part.times
        self.saved_count, self.saved_to = part.saved_count, part.saved_to
        self.file_bytes = part.file_bytes
        self.loaded_from = HEADER_BYTES

    def _load_blocks(self, data: bytes, base: Offset, data_end: int) -> None:
        """Take the intact blocks that continue each other and cover nothing beyond the data."""
        at = 0
        while at + _BLOCK.size <= len(data):
            magic, count, block_base, start, end, crc = _BLOCK.unpack_from(data, at)
            body = data[at + _BLOCK.size : at + _BLOCK.size + count * _ENTRY_BYTES]
            head = data[at : at + _BLOCK.size - 4]
            if (
                magic != _MAGIC
                or block_base != base
                or start != self.saved_to
                or not start <= end <= data_end
                or len(body) != count * _ENTRY_BYTES
                or crc32c(body, crc32c(head)) != crc
            ):
                break
            self.offsets.frombytes(body[: count * 8])
            self.positions.frombytes(body[count * 8 : count * 12])
            self.times.frombytes(body[count * 12 :])
            self.saved_to = end
            at += _BLOCK.size + len(body)
        self.file_bytes = at
        self.saved_count = len(self.offsets)
        if self.saved_count:
            self.next_position = self.positions[-1] + self.interval

    def _walk(self, file: File, position: int, end: int) -> None:
        """Add entries for the batches of a part of the file."""
        time = TimestampMs(-1)
        if self.positions:
            # The last entry has the time of what precedes it: begin there, to learn what follows.
            position = self.positions[-1]
            time = TimestampMs(self.times[-1])
        for place, header in walk_headers(file, position, end):
            if place >= self.next_position:
                self.add(header.base_offset, place, time)
            if header.max_timestamp > time:
                time = header.max_timestamp

    def next_block(self, covered_to: int, base: Offset) -> bytes:
        """The entries that are not in the file yet, as a block that covers up to `covered_to`."""
        start = self.saved_count
        stop = max(start, bisect_left(self.positions, covered_to))
        body = b"".join(
            part[start:stop].tobytes() for part in (self.offsets, self.positions, self.times)
        )
        head = _BLOCK.pack(_MAGIC, stop - start, base, self.saved_to, covered_to, 0)[:-4]
        return head + struct.pack(">I", crc32c(body, crc32c(head))) + body

    def saved(self, covered_to: int, size: int) -> None:
        """The block of next_block is in the file."""
        self.saved_count = max(self.saved_count, bisect_left(self.positions, covered_to))
        self.saved_to = covered_to
        self.file_bytes += size


def read_index(data: bytes, file: File, base: Offset, end: int, interval: int) -> SegmentIndex:
    """The entries before `end`: from the index file's `data`, then from the batches. Any thread may
    call it."""
    part = SegmentIndex(HEADER_BYTES, interval)
    part._load_blocks(data, base, end)
    part._walk(file, part.saved_to, end)
    return part
