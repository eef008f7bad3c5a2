"""Decodes fetched record batches to Arrow columns, with the compiled decoder or with numpy.

`MOLDAU_SPARK_DECODER=numpy` in the environment of Spark's workers forces numpy.
"""

import logging
import os
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from moldau.records.batch import BatchFormatError
from moldau.spark.schema import arrow_schema, headers_type
from moldau.spark.source.fetched_batches import (
    BatchBodies,
    DecodedColumns,
    Lists,
    Strings,
    readable_bodies,
    whole_batches,
)
from moldau.spark.source.planning import OffsetRange

log = logging.getLogger(__name__)

_BYTES_MAX = 2**31 - 1
"""The largest offset of an Arrow column."""

KIND = "numpy"
"""The decoder in use."""
if os.environ.get("MOLDAU_SPARK_DECODER") != "numpy":
    try:
        from moldau.spark.source import compiled

        KIND = "compiled"
    except ImportError:
        # Installed without a C compiler.
        pass
log.info("decoder of record batches: %s", KIND)


def scan(fetched: memoryview, start: int, end: int) -> tuple[int, bytearray] | None:
    """The offset after the complete batches in `fetched`, and the batches with offsets from `start`
    to before `end`, packed for `BatchBodies`. None if `fetched_batches` must parse them."""
    return compiled.scan(fetched, start, end, crc32c) if KIND == "compiled" else None


def decode(found: BatchBodies, end: int, with_headers: bool) -> DecodedColumns:
    """The records with offsets before `end`. Raises BatchFormatError."""
    bodies = [body for body in found.bodies if body.header.record_count]
    if KIND == "compiled":
        packed = compiled.packed(bodies) if found.packed is None else found.packed
        decoded = compiled.decode(found.data, packed, found.start, end, with_headers)
        if decoded is not None:
            return decoded
        if found.packed is not None:
            batches = whole_batches(found.data, end)
            (listed,) = readable_bodies(found.data, batches, (), start=found.start, end=end)
            return decode(listed, end, with_headers)
    # This one can say what is wrong. A late import, since numpy is slow to import.
    from moldau.spark.source import numpy_decoder

    try:
        return numpy_decoder.decode(found.data, bodies, found.start, end, with_headers)
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None


def record_batch(found: BatchBodies, planned: OffsetRange, with_headers: bool) -> Any:
    """The records of a range as one pyarrow.RecordBatch. Raises BatchFormatError."""
    schema = arrow_schema(include_headers=with_headers)
    if len(found.data) > _BYTES_MAX:
        raise BatchFormatError(f"{len(found.data)} bytes of records; the limit is {_BYTES_MAX}")
    decoded = decode(found, planned.end, with_headers)
    count, offsets, micros, types, keys, values, headers = decoded
    columns = [
        _strings(keys),
        _strings(values),
        pa.repeat(pa.scalar(planned.topic, pa.string()), count),
        pa.repeat(pa.scalar(planned.partition, pa.int32()), count),
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
    """A list of (key, value) per record; null for records without headers."""
    nulls, validity, offsets, names, values = found
    pairs = pa.StructArray.from_arrays(
        [_as_text(_strings(names)), _strings(values)], fields=list(headers_type().value_type)
    )
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(headers_type(), count, buffers, nulls, children=[pairs])


def _as_text(names: Any) -> Any:
    """Header keys should be UTF-8, but brokers do not check it: invalid bytes are replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()])
