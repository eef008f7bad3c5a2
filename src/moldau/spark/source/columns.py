"""Owns the Arrow columns of records: what they are made of comes from a decoder."""

from typing import Any

import pyarrow as pa

from moldau.records.batch import BatchFormatError
from moldau.spark.schema import arrow_schema, headers_type
from moldau.spark.source.bodies import Bodies
from moldau.spark.source.decoding import Lists, Strings, decode

_BYTES_MAX = 2**31 - 1
"""What the offsets of a column can count."""


def record_batch(
    found: Bodies, *, topic: str, partition: int, end: int, include_headers: bool
) -> Any:
    """The records with offsets before `end` as one pyarrow.RecordBatch.

    Raises BatchFormatError if anything in them does not add up.
    """
    schema = arrow_schema(include_headers=include_headers)
    if len(found.data) > _BYTES_MAX:
        raise BatchFormatError(f"{len(found.data)} bytes of records at once")
    count, offsets, micros, types, keys, values, headers = decode(found, end, include_headers)
    columns = [
        _strings(keys),
        _strings(values),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        _numbers(pa.int64(), count, offsets),
        _numbers(schema.field("timestamp").type, count, micros),
        _numbers(pa.int32(), count, types),
    ]
    if headers is not None:
        columns.append(_headers(count, headers))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _numbers(kind: Any, count: int, buffer: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(buffer)])


def _strings(found: Strings) -> Any:
    count, nulls, validity, offsets, data = found
    buffers = [
        pa.py_buffer(validity) if nulls else None,
        pa.py_buffer(offsets),
        None if data is None else pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(pa.binary(), count, buffers, nulls)


def _headers(count: int, found: Lists) -> Any:
    """A list of (key, value) per record, null for records that have none."""
    nulls, validity, offsets, names, values = found
    pairs = pa.StructArray.from_arrays(
        [_as_text(_strings(names)), _strings(values)], fields=list(headers_type().value_type)
    )
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(headers_type(), count, buffers, nulls, children=[pairs])


def _as_text(names: Any) -> Any:
    """Header keys are UTF-8 by contract, but brokers never check: what is not is replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()])
