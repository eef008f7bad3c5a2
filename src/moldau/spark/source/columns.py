"""Owns the way from record batches to Arrow columns, without an object per record.

All records of a fetch are decoded together: arrays hold where each starts, its deltas, and where
its key and value begin and end. Keys and values then leave the fetched bytes by one compiled copy
each: the bytes are looked at as an Arrow array of `key, gap, value, gap, key, …`, of which every
fourth element is taken.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.records.batch import BatchFormatError
from moldau.spark.schema import APPEND_TIME, CREATE_TIME, arrow_schema, headers_type
from moldau.spark.source.bodies import Bodies, Body
from moldau.spark.source.varints import Bytes, Ints, RecordStarts, read_varints

_MICROSECONDS_PER_MS = 1000
_MS_MAX = (2**63 - 1) // _MICROSECONDS_PER_MS


class _Fields(NamedTuple):
    """Of every record; lengths are -1 for null. `end` is where the next one starts."""

    offset: Ints
    timestamp_ms: Ints
    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints
    headers_at: Ints
    end: Ints

    def between(self, first: int, last: int) -> "_Fields":
        return _Fields(*(field[first:last] for field in self))


def record_batch(
    found: Bodies, *, topic: str, partition: int, end: int, include_headers: bool
) -> Any:
    """The records with offsets before `end` as one pyarrow.RecordBatch.

    Raises BatchFormatError if anything in them does not add up.
    """
    schema = arrow_schema(include_headers=include_headers)
    bodies = [body for body in found.bodies if body.header.record_count]
    if not bodies:
        return _empty(schema)
    data = np.frombuffer(found.data, dtype=np.uint8)
    try:
        fields = _fields(data, found.data, bodies)
        first, last = np.searchsorted(fields.offset, (found.start, end))
        types = np.repeat(
            [APPEND_TIME if body.header.is_append_time else CREATE_TIME for body in bodies],
            [body.header.record_count for body in bodies],
        )[first:last]
        fields = fields.between(int(first), int(last))
        if not fields.offset.size:
            return _empty(schema)
        keys, values = _keys_and_values(found.data, fields)
        columns = [
            keys,
            values,
            pa.repeat(pa.scalar(topic, pa.string()), len(values)),
            pa.repeat(pa.scalar(partition, pa.int32()), len(values)),
            _numbers(fields.offset, pa.int64()),
            _numbers(_micros(fields.timestamp_ms), schema.field("timestamp").type),
            _numbers(types.astype(np.int32), pa.int32()),
        ]
        if include_headers:
            columns.append(_headers(data, found.data, fields))
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _micros(times_ms: Ints) -> Ints:
    """A time that does not fit becomes the last one that does, not some other one."""
    if times_ms.max() > _MS_MAX or times_ms.min() < -_MS_MAX:
        times_ms = np.clip(times_ms, -_MS_MAX, _MS_MAX)
    return times_ms * _MICROSECONDS_PER_MS


def _numbers(numbers: Ints, kind: Any) -> Any:
    """Without a copy, and without the import of pandas that pyarrow.array does."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays(
        [pa.array([], type=field.type) for field in schema], schema=schema
    )


def _fields(data: Bytes, view: memoryview, bodies: Sequence[Body]) -> _Fields:
    counts = [body.header.record_count for body in bodies]
    collected = RecordStarts(data, view)
    for body in bodies:
        collected.add(body.start, body.end, body.header.record_count)
    starts = collected.array()
    lengths, at = read_varints(data, starts)
    ends = at + lengths
    timestamp_deltas, at = read_varints(data, at + 1)
    offset_deltas, at = read_varints(data, at)
    key_lengths, key_starts = read_varints(data, at)
    key_ends = key_starts + np.maximum(key_lengths, 0)
    value_lengths, value_starts = read_varints(data, key_ends)
    value_ends = value_starts + np.maximum(value_lengths, 0)
    if (
        (key_lengths < -1).any()
        or (value_lengths < -1).any()
        or (key_ends >= ends).any()
        or (value_ends >= ends).any()
    ):
        raise BatchFormatError("a key or a value does not end within its record")
    headers = [body.header for body in bodies]
    offsets = np.repeat([header.base_offset for header in headers], counts) + offset_deltas
    if (
        (offset_deltas < 0).any()
        or (offset_deltas > np.repeat([h.last_offset_delta for h in headers], counts)).any()
        or (np.diff(offsets) <= 0).any()
    ):
        raise BatchFormatError("offsets do not rise from record to record")
    timestamps = np.repeat([header.base_timestamp for header in headers], counts)
    timestamps += timestamp_deltas
    if any(header.is_append_time for header in headers):
        # The broker's time is that of the batch, whatever its records say.
        stamped = np.repeat([header.is_append_time for header in headers], counts)
        batch_times = np.repeat([header.max_timestamp for header in headers], counts)
        timestamps = np.where(stamped, batch_times, timestamps)
    _check_ends(data, value_ends, ends)
    return _Fields(
        offsets,
        timestamps,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        value_ends,
        ends,
    )


def _check_ends(data: Bytes, headers_at: Ints, ends: Ints) -> None:
    """A record without headers ends with one zero; one with headers does not."""
    if ((data[headers_at] == 0) & (headers_at + 1 != ends)).any():
        raise BatchFormatError("bytes are left over at the end of a record")


def _keys_and_values(view: memoryview, fields: _Fields) -> tuple[Any, Any]:
    count = fields.offset.size
    edges = np.empty(4 * count, dtype=np.int32)
    edges[0::4] = fields.key_start
    edges[1::4] = fields.key_start + np.maximum(fields.key_length, 0)
    edges[2::4] = fields.value_start
    edges[3::4] = fields.value_start + np.maximum(fields.value_length, 0)
    every_fourth = np.arange(0, 4 * count, 4, dtype=np.int32)
    pieces = pa.Array.from_buffers(
        pa.binary(), 4 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(view)]
    )
    keys = _taken(pieces, every_fourth, fields.key_length)
    every_fourth += 2
    return keys, _taken(pieces, every_fourth, fields.value_length)


def _taken(pieces: Any, indices: Any, lengths: Ints) -> Any:
    """The elements of `pieces` at `indices`, null where the length is -1."""
    is_null = lengths < 0
    null_count = int(np.count_nonzero(is_null))
    if null_count == len(indices):
        return pa.nulls(null_count, pieces.type)
    taken = pieces.take(_numbers(indices, pa.int32()))
    if not null_count:
        return taken
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    _, offsets, data = taken.buffers()
    return pa.Array.from_buffers(
        pieces.type, len(taken), [validity, offsets, data], null_count, taken.offset
    )


def _headers(data: Bytes, view: memoryview, fields: _Fields) -> Any:
    """A list of (key, value) per record, null for records that have none."""
    counts, at = read_varints(data, fields.headers_at)
    if (counts < 0).any() or (counts > fields.end - at).any():
        raise BatchFormatError("a record's count of headers cannot be right")
    total = int(counts.sum())
    if not total:
        return pa.nulls(counts.size, headers_type())
    list_offsets = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=list_offsets[1:])
    edges = np.empty(4 * total, dtype=np.int32)
    value_lengths = np.empty(total, dtype=np.int64)
    # All first headers together, then all second ones, …
    active = np.flatnonzero(counts)
    number = 0
    while active.size:
        key_lengths, key_starts = read_varints(data, at[active])
        key_ends = key_starts + key_lengths
        if (key_lengths < 0).any() or (key_ends >= fields.end[active]).any():
            raise BatchFormatError("a header's key does not end within its record")
        lengths, value_starts = read_varints(data, key_ends)
        value_ends = value_starts + np.maximum(lengths, 0)
        if (lengths < -1).any() or (value_ends > fields.end[active]).any():
            raise BatchFormatError("a header's value does not end within its record")
        place = list_offsets[active] + number
        for side, edge in enumerate((key_starts, key_ends, value_starts, value_ends)):
            edges[4 * place + side] = edge
        value_lengths[place] = lengths
        at[active] = value_ends
        number += 1
        active = active[counts[active] > number]
    if (at != fields.end).any():
        raise BatchFormatError("bytes are left over at the end of a record")
    pieces = pa.Array.from_buffers(
        pa.binary(), 4 * total - 1, [None, pa.py_buffer(edges), pa.py_buffer(view)]
    )
    every_fourth = np.arange(0, 4 * total, 4, dtype=np.int32)
    keys = _as_text(pieces.take(_numbers(every_fourth, pa.int32())))
    values = _taken(pieces, every_fourth + 2, value_lengths)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(headers_type().value_type))
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    return pa.Array.from_buffers(
        headers_type(),
        counts.size,
        [validity, pa.py_buffer(list_offsets.astype(np.int32))],
        null_count=int(np.count_nonzero(counts == 0)),
        children=[pairs],
    )


def _as_text(names: Any) -> Any:
    """Header keys are UTF-8 by contract, but brokers never check: what is not is replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()])
