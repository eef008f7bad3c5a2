"""Record batches to Arrow columns in one process, without Spark: records per second of CPU time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch, read_records
from moldau.spark.schema import arrow_schema
from moldau.spark.source import numpy_decoder, record_decoder
from moldau.spark.source.fetched_batches import BatchBodies, readable_bodies, whole_batches
from moldau.spark.source.fetcher import tune_worker_once
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.record_decoder import record_batch

NOW = 1_700_000_000_000
END = 1 << 62
RECORDS_PER_BATCH = 150
"""What a producer puts into 16 KiB of records of 100 bytes."""
SECONDS_MIN = 0.5


def made(size: int, count: int, *, varied: bool) -> memoryview:
    rng = random.Random(1)
    per_batch = max(1, RECORDS_PER_BATCH * 100 // size)
    batches = []
    for base in range(0, count, per_batch):
        records = [
            Record(
                Offset(0),
                TimestampMs(NOW + number // 10),
                b"k%07d" % number,
                bytes(rng.randrange(size) if varied else size),
                [],
            )
            for number in range(base, min(base + per_batch, count))
        ]
        batches.append(build_batch(records, base_offset=Offset(base)))
    return memoryview(b"".join(batches))


def ours(data: memoryview) -> int:
    scanned = record_decoder.scan(data, 0, END)
    if scanned is not None:
        found = BatchBodies(data, [], 0, scanned[1])
    else:
        (found,) = readable_bodies(data, whole_batches(data), [], start=0, end=END)
    planned = OffsetRange(topic="t", partition=0, start=0, end=END)
    rows = record_batch(found, planned, False)
    return int(rows.num_rows)


def one_by_one(data: memoryview) -> int:
    records = [
        record
        for placed in whole_batches(data)
        for record in read_records(bytes(data[placed.position :][: placed.header.size]))
    ]
    return _into_columns(
        [(r.key, r.value, "t", 0, r.offset, r.timestamp * 1000, 0) for r in records]
    )


def by_numpy(data: memoryview) -> int:
    """What ours does where nothing is compiled, up to the buffers of the columns."""
    (found,) = readable_bodies(data, whole_batches(data), [], start=0, end=END)
    return numpy_decoder.decode(found.data, found.bodies, 0, END, False)[0]


def by_aiokafka(data: memoryview) -> int:
    """The decoder that aiokafka compiles with Cython."""
    from aiokafka.record.default_records import DefaultRecordBatch

    rows: list[tuple[object, ...]] = []
    for placed in whole_batches(data):
        batch = DefaultRecordBatch(bytes(data[placed.position :][: placed.header.size]))
        batch.validate_crc()
        rows += [(r.key, r.value, "t", 0, r.offset, r.timestamp * 1000, 0) for r in batch]
    return _into_columns(rows)


def _into_columns(rows: list[tuple[object, ...]]) -> int:
    import pyarrow as pa

    schema = arrow_schema(include_headers=False)
    columns = [
        pa.array(column, type=field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return int(pa.RecordBatch.from_arrays(columns, schema=schema).num_rows)


def rate(decode: Callable[[memoryview], int], data: memoryview) -> float:
    """The best of several rounds: others on the machine only ever make one slower."""
    tune_worker_once()
    best = 0.0
    decode(data)  # Imports, and first uses of compiled code.
    until = time.monotonic() + SECONDS_MIN
    while time.monotonic() < until:
        began = time.process_time()
        count = decode(data)
        best = max(best, count / (time.process_time() - began))
    return best
