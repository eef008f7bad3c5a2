"""Sources of rows that are ready: what Spark takes if a source costs nothing.

`ceiling` hands over the same Arrow batch again and again, so that what is left is the way into
Spark. `idle` does the same for a stream of tiny batches. `tuples` reads the topic as sources do
that make an object of each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from moldau.client.kafka.client import KafkaClient
from moldau.records.batch import HEADER_BYTES
from moldau.records.record import read_records
from moldau.spark.schema import arrow_schema, ddl
from moldau.spark.source.batch import BatchReader
from moldau.spark.source.fetching import FetchLimits, RangeFetcher
from moldau.spark.source.read_options import parse_read_options

BATCH_BYTES = 3 * 1024 * 1024
"""Batches of that size cost Spark the least: 20,000 rows of 1 KiB at a time take a third longer."""
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

        import pyarrow as pa

        gc.freeze()
        schema = arrow_schema(include_headers=False)
        left = self.rows // self.tasks
        most = BATCH_BYTES // (len(self.value) + ROW_BYTES)
        columns = zip(*[row(self.value)] * min(left, most), strict=True)
        arrays = [
            pa.array(list(column), type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        while left > 0:
            yield batch.slice(0, min(left, most))
            left -= most


class TuplesReader(BatchReader):
    """Plans and fetches as our source does, then decodes one by one and hands over tuples."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import gc

        gc.freeze()
        limits = FetchLimits(
            bytes_max=self._options.fetch_bytes_max,
            timeout_seconds=self._options.timeout_seconds,
            read_committed=False,
            fail_on_data_loss=True,
        )
        with KafkaClient(self._options.bootstrap) as client:
            for planned in partition.ranges:
                for found in RangeFetcher(client, planned, limits):
                    for body in found.bodies:
                        whole = bytes(found.data[body.start - HEADER_BYTES : body.end])
                        for record in read_records(whole):
                            moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                            yield (
                                *(record.key, record.value),
                                *(planned.topic, planned.partition, record.offset, moment, 0),
                            )


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


class Tuples(Ceiling):
    @classmethod
    def name(cls) -> str:
        return "bench-tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        return TuplesReader(parse_read_options(self.options, streaming=False))


class Idle(Ceiling):
    @classmethod
    def name(cls) -> str:
        return "bench-idle"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return IdleReader(int(self.options["rows"]), int(self.options["tasks"]))
