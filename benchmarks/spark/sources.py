"""Sources of rows that are ready: what Spark takes if a source costs nothing.

`ceiling` hands over Arrow batches that are there already, so that what is left is the way into
Spark: many of them in turn, since what comes from a topic is in no cache of a core either. `idle`
does the same for a stream of tiny batches.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from moldau.spark.schema import arrow_schema, ddl

BATCH_BYTES = 3 * 1024 * 1024
"""Batches of that size cost Spark the least: 20,000 rows of 1 KiB at a time take a third longer."""
COLD_BYTES = 96 * 1024 * 1024
"""Of different batches: many times what a core has of cache."""
ROW_BYTES = 40
"""Of a row without its value."""
KEY_BYTES = 8
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def row(value: bytes) -> tuple[Any, ...]:
    return (b"k" * KEY_BYTES, value, "bench", 0, 1, MOMENT, 0)


class ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.rows = int(options["rows"])
        self.tasks = int(options["tasks"])
        self.value = b"x" * int(options["size"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]


class CeilingReader(ReadyReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        import gc

        ready = batches(self.value, self.rows // self.tasks)
        gc.freeze()
        left = self.rows // self.tasks
        for batch in itertools.cycle(ready):
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows
            if left <= 0:
                return


@functools.cache
def batches(value: bytes, rows_max: int) -> list[Any]:
    """Equal ones at different places. Made once in a worker: the first round is not counted."""
    import pyarrow as pa

    schema = arrow_schema(include_headers=False)
    count = min(rows_max, BATCH_BYTES // (len(value) + ROW_BYTES))
    columns = zip(*[row(value)] * count, strict=True)
    arrays = [
        pa.array(list(column), type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    message = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize()
    needed = min(COLD_BYTES // BATCH_BYTES, -(-rows_max // count))
    return [
        pa.ipc.read_record_batch(pa.py_buffer(bytearray(message)), schema) for _ in range(needed)
    ]


class IdleReader(DataSourceStreamReader):
    def __init__(self, rows: int, tasks: int) -> None:
        self.rows = rows
        self.tasks = tasks

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"offset": start["offset"] + self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ready = {"rows": str(self.rows), "tasks": str(self.tasks), "size": "100"}
        return CeilingReader(ready).read(partition)


class Ceiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench-ceiling"

    def schema(self) -> str:
        return ddl(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(dict(self.options))


class Idle(Ceiling):
    @classmethod
    def name(cls) -> str:
        return "bench-idle"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return IdleReader(int(self.options["rows"]), int(self.options["tasks"]))
