"""Decodes record batches to Arrow buffers with numpy, where the compiled decoder was not built.

Only the starts of records are found one by one, each from the length of the one before; all else is
read for thousands of records at once by array operations. It also reports what is wrong with
corrupt records for `compiled`, which only detects them.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from moldau.records.batch import RECORD_BYTES_MIN, BatchFormatError
from moldau.records.record import read_headers
from moldau.spark.schema import APPEND_TIME, CREATE_TIME
from moldau.spark.source.fetched_batches import BatchBody, DecodedColumns, Lists, Strings

Ints = Any
"""An array of int64."""

_MICROSECONDS_PER_MS: Final = 1000
_MS_MAX: Final = (2**63 - 1) // _MICROSECONDS_PER_MS
_LENGTH_SHIFT_MAX: Final = 28


def decode(
    view: memoryview, bodies: Sequence[BatchBody], start: int, end: int, with_headers: bool
) -> DecodedColumns:
    """The records with offsets from `start` to before `end`. Raises BatchFormatError, or IndexError
    past the end of the data, for a corrupt record. Ignores headers unless `with_headers`."""
    data = np.frombuffer(view, dtype=np.uint8)
    heads = [body.header for body in bodies]
    counts = [head.record_count for head in heads]

    def of_batches(values: list[int]) -> Ints:
        return np.repeat(np.array(values, dtype=np.int64), counts)

    lengths, at = _numbers(data, np.array(_starts(view, bodies), dtype=np.int64))
    ends = at + lengths
    time_deltas, at = _numbers(data, at + 1)
    offset_deltas, at = _numbers(data, at)
    key_lengths, key_starts = _numbers(data, at)
    key_ends = _ends(key_starts, key_lengths, ends)
    value_lengths, value_starts = _numbers(data, key_ends)
    value_ends = _ends(value_starts, value_lengths, ends)
    # A record without headers ends with one zero; one with headers does not.
    if ((data[value_ends] == 0) & (value_ends + 1 != ends)).any():
        raise BatchFormatError("bytes are left over at the end of a record")
    offsets = of_batches([head.base_offset for head in heads]) + offset_deltas
    if (
        (offset_deltas < 0).any()
        or (offset_deltas > of_batches([head.last_offset_delta for head in heads])).any()
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise BatchFormatError("offsets do not increase from record to record")
    types = of_batches([APPEND_TIME if h.is_append_time else CREATE_TIME for h in heads])
    # With LogAppendTime the timestamp of the batch counts, not those of its records.
    times = np.where(
        types == APPEND_TIME,
        of_batches([head.max_timestamp for head in heads]),
        of_batches([head.base_timestamp for head in heads]) + time_deltas,
    )
    first, last = np.searchsorted(offsets, (start, end))
    some = slice(int(first), max(int(first), int(last)))
    count = some.stop - some.start
    edges = np.empty(4 * count, dtype=np.int32)
    for number, edge in enumerate((key_starts, key_ends, value_starts, value_ends)):
        edges[number::4] = edge[some]
    # Seen as `key, gap, value, gap, key, …`, of which `take` copies every fourth in C.
    pieces = pa.Array.from_buffers(
        pa.binary(), max(0, 4 * count - 1), [None, pa.py_buffer(edges), pa.py_buffer(view)]
    )
    return (
        count,
        offsets[some].copy(),
        # A timestamp out of range is clipped; otherwise it would wrap around.
        np.clip(times[some], -_MS_MAX, _MS_MAX) * _MICROSECONDS_PER_MS,
        types[some].astype(np.int32),
        _taken(pieces, 0, key_lengths[some]),
        _taken(pieces, 2, value_lengths[some]),
        _headers(view, value_ends[some], ends[some]) if with_headers else None,
    )


def _starts(view: memoryview, bodies: Sequence[BatchBody]) -> list[int]:
    """Where each record starts; the records must fill their batches."""
    starts = []
    for at, end, header in bodies:
        for _ in range(header.record_count):
            starts.append(at)
            size = shift = 0
            byte = 0x80
            while byte >= 0x80:
                if at >= end or shift > _LENGTH_SHIFT_MAX:
                    raise BatchFormatError("a record's length runs past the end of the batch")
                byte = view[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            if size & 1 or size >> 1 < RECORD_BYTES_MIN - 1 or at + (size >> 1) > end:
                raise BatchFormatError(
                    f"record of {-(size >> 1) if size & 1 else size >> 1} bytes, {end - at} left"
                )
            at += size >> 1
        if at != end:
            raise BatchFormatError(f"{end - at} bytes after the last record")
    return starts


def _numbers(data: Any, at: Ints) -> tuple[Ints, Ints]:
    """The zig-zag varints at the positions `at`, and the positions after them.

    Reads the first bytes of all, then the second bytes of those that have one, and so on. Raises
    IndexError past the end of the data.
    """
    byte = data[at]
    values = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(byte & 0x80)
    shift = 7
    while longer.size:
        byte = data[after[longer]]
        if shift == 63 and (byte > 1).any():
            raise BatchFormatError("number longer than 64 bits")
        values[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[byte >= 0x80]
        shift += 7
    return ((values >> np.uint64(1)) ^ -(values & np.uint64(1))).view(np.int64), after


def _ends(starts: Ints, lengths: Ints, ends: Ints) -> Ints:
    """Where keys or values end: before the end of their record, since more fields follow."""
    sizes = np.maximum(lengths, 0)
    if (lengths < -1).any() or (sizes >= ends - starts).any():
        raise BatchFormatError("a key or a value does not end within its record")
    return starts + sizes


def _taken(pieces: Any, first: int, lengths: Ints) -> Strings:
    """Every fourth element of `pieces`, null where the length is -1."""
    count = len(lengths)
    # Not pyarrow.array, which imports pandas.
    indices = pa.py_buffer(np.arange(first, first + 4 * count, 4, dtype=np.int32))
    taken = pieces.take(pa.Array.from_buffers(pa.int32(), count, [None, indices]))
    _, offsets, data = taken.buffers()
    validity = np.packbits(lengths >= 0, bitorder="little")
    return count, int(np.count_nonzero(lengths < 0)), validity, offsets, data


def _headers(view: memoryview, starts: Ints, ends: Ints) -> Lists:
    """Read one by one, since few topics have headers."""
    data = bytes(view)
    names: list[bytes] = []
    values: list[bytes | None] = []
    edges = [0]
    for at, end in zip(starts.tolist(), ends.tolist(), strict=True):
        found, at = read_headers(data, at, end)
        if at != end:
            raise BatchFormatError("bytes are left over at the end of a record")
        names += [name.encode("utf-8", "surrogateescape") for name, _ in found]
        values += [value for _, value in found]
        edges.append(len(names))
    offsets = np.array(edges, dtype=np.int32)
    has_some = offsets[1:] > offsets[:-1]
    return (
        int(np.count_nonzero(~has_some)),
        np.packbits(has_some, bitorder="little"),
        offsets,
        _listed(names),
        _listed(values),
    )


def _listed(values: Sequence[bytes | None]) -> Strings:
    found = pa.array(values, pa.binary())
    return len(found), found.null_count, *found.buffers()
