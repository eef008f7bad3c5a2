"""Owns the decoding of many zig-zag varints at once, and of the starts of records in a batch.

A number of one to ten bytes is read for thousands of records by a few operations on arrays: the
first bytes of all, then the second bytes of those that have one, and so on. Where a record starts
is known only from the length of the one before; equal lengths in a row are found as a run.
"""

from typing import Any, Final

import numpy as np

from moldau.records.batch import RECORD_BYTES_MIN, BatchFormatError

Ints = Any
"""An array of int64."""
Bytes = Any
"""An array of uint8."""

VARINT_BYTES_MAX: Final = 10
_RUN_MIN: Final = 64
"""Shorter runs are walked faster than they are looked for."""
_SMALLEST: Final = (RECORD_BYTES_MIN - 1) << 1
"""The length of the smallest record as it is written."""
_WALK_COUNT: Final = 256
"""Records walked one by one before a run is looked for again."""


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The signed numbers at the positions `at`, and the positions after them.

    Raises IndexError past the end of the data, BatchFormatError for a number without an end.
    """
    first = data[at]
    values = (first & 0x7F).astype(np.int64)
    after = at + 1
    longer = np.flatnonzero(first & 0x80)
    if longer.size:
        if longer.size == at.size:
            # The usual case of numbers of one size: no detour over indices.
            _add_all(data, values, after)
        else:
            part, ends = values[longer], after[longer]
            _add_all(data, part, ends)
            values[longer], after[longer] = part, ends
    return (values >> 1) ^ -(values & 1), after


def _add_all(data: Bytes, values: Ints, after: Ints) -> None:
    """Add the second and further bytes of numbers that all have a second one, in place."""
    where: Ints = slice(None)
    shift = 7
    while True:
        byte = data[after[where]]
        values[where] |= (byte & 0x7F).astype(np.int64) << shift
        after[where] += 1
        more = np.flatnonzero(byte & 0x80)
        if not more.size:
            return
        where = more if isinstance(where, slice) else where[more]
        shift += 7
        if shift >= 7 * VARINT_BYTES_MAX:
            raise BatchFormatError("number longer than 64 bits")


class RecordStarts:
    """Collects where records start, batch after batch."""

    def __init__(self, data: Bytes, view: memoryview) -> None:
        """`view` is `data` as a memoryview, which is faster to look at one byte of."""
        self._data = data
        self._view = view
        self._parts: list[Ints] = []
        self._walked: list[int] = []
        """What was walked since the last run; many small batches make one array."""

    def add(self, position: int, end: int, count: int) -> None:
        """The `count` records between `position` and `end`; BatchFormatError if they don't fit."""
        left = count
        while left:
            if left >= _RUN_MIN:
                size, run = _equal_run(self._data, self._view, position, end, left)
                if run >= _RUN_MIN:
                    self._flush()
                    until = position + run * size
                    self._parts.append(np.arange(position, until, size, dtype=np.int64))
                    position = until
                    left -= run
                    continue
            walked = min(left, _WALK_COUNT)
            position = _walk(self._view, position, end, walked, self._walked)
            left -= walked
        if position != end:
            raise BatchFormatError(f"{end - position} bytes after the last record")

    def array(self) -> Ints:
        self._flush()
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)

    def _flush(self) -> None:
        if self._walked:
            self._parts.append(np.array(self._walked, dtype=np.int64))
            self._walked = []


def _equal_run(
    data: Bytes, view: memoryview, position: int, end: int, count_max: int
) -> tuple[int, int]:
    """The size of the record at `position`, and how many of that size follow each other."""
    size, after = _record_size(view, position, end)
    whole = after + size - position
    count = min(count_max, (end - position) // whole)
    if count < _RUN_MIN:
        return whole, count
    # The same bytes of length at every place: then each is a record as long as the first.
    equal = data[position : position + count * whole : whole] == view[position]
    for number in range(1, after - position):
        at = position + number
        equal &= data[at : at + (count - 1) * whole + 1 : whole] == view[at]
    broken = int(equal.argmin())
    return whole, count if equal[broken] else broken


def _walk(view: memoryview, position: int, end: int, count: int, starts: list[int]) -> int:
    """Add the starts of so many records to `starts`; the position after the last of them."""
    add = starts.append
    # Lengths of one and two bytes are nearly all there are: read without a call.
    last = end - 2
    for _ in range(count):
        add(position)
        if position < last:
            byte = view[position]
            if byte < 0x80:
                if byte >= _SMALLEST and not byte & 1:
                    position += 1 + (byte >> 1)
                    continue
            else:
                next_byte = view[position + 1]
                if next_byte < 0x80 and not byte & 1:
                    position += 2 + ((byte & 0x7F | next_byte << 7) >> 1)
                    continue
        size, after = _record_size(view, position, end)
        position = after + size
    return position


def _record_size(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """The length of the record at `position`, and where the record itself begins."""
    value = shift = 0
    at = position
    while True:
        if at >= end or shift > 28:
            raise BatchFormatError("a record's length runs past the end of the batch")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    size = value >> 1
    if value & 1 or size < RECORD_BYTES_MIN - 1 or at + size > end:
        raise BatchFormatError(f"record of {-size if value & 1 else size} bytes, {end - at} left")
    return size, at
