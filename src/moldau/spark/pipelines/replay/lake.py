"""Owns a table of a lake as the source of a replay: which offsets it holds, and its rows in order.

Offsets are what is pinned, not files: a table may be compacted while a replay goes on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import DataFile
from moldau.spark.pipelines.replay.frames import selected
from moldau.spark.pipelines.replay.selection import Selection
from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.pipelines.tables import existing_table, table_rows
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


class LakeSource:
    """A table. Opened in the driver."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._table, self._schema = existing_table(
            settings.table or "", settings.table_format, settings.storage
        )
        self._value = _value_column(self._schema, self._table.location)
        self._columns = [
            self._value if name == "value" else name
            for name in _COLUMNS
            if name != "headers" or "headers" in self._schema.names
        ]

    def ranges(self, selection: Selection) -> tuple[list[OffsetRange], int]:
        """From the first to the last offset that is selected, of each partition; and how many.

        Reads the columns that this takes, in this process.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        from moldau.spark.lake.files import read_table

        names = ["topic", "partition", "offset", "timestamp"]
        if selection.keys is not None:
            names.append("key")
        wanted = None if selection.keys is None else pa.array(sorted(selection.keys), pa.binary())
        bounds: dict[tuple[str, int], tuple[int, int]] = {}
        rows = 0
        for batch in read_table(self._table, names):
            kept = pa.Table.from_batches([batch])
            times = pc.cast(kept.column("timestamp"), pa.timestamp("us", tz="UTC")).cast(pa.int64())
            if selection.from_ms is not None:
                mask = pc.greater_equal(times, selection.from_ms * 1000)
                kept, times = kept.filter(mask), times.filter(mask)
            if selection.to_ms is not None:
                kept = kept.filter(pc.less(times, selection.to_ms * 1000))
            if wanted is not None:
                keys = pc.cast(kept.column("key"), pa.binary())
                kept = kept.filter(pc.is_in(keys, value_set=wanted))
            rows += _take_bounds(kept, selection, bounds)
        ranges = [
            OffsetRange(topic=topic, partition=partition, start=first, end=last + 1)
            for (topic, partition), (first, last) in sorted(bounds.items())
        ]
        return ranges, rows

    def rows(
        self, spark: "SparkSession", ranges: Sequence[OffsetRange], selection: Selection
    ) -> "DataFrame":
        """The rows of a batch: each partition of the source in one task, in order, none twice."""
        from pyspark.sql import functions as F  # noqa: N812

        files = self._files_with(ranges)
        rows = table_rows(spark, self._table, self._schema, files, self._columns)
        if self._value != "value":
            rows = rows.withColumnRenamed(self._value, "value")
        if "headers" not in self._columns:
            none = F.lit(None).cast("array<struct<key:string,value:binary>>")
            rows = rows.withColumn("headers", none)
        inside = [
            (F.col("topic") == planned.topic)
            & (F.col("partition") == planned.partition)
            & (F.col("offset") >= planned.start)
            & (F.col("offset") < planned.end)
            for planned in ranges
        ]
        rows = rows.where(_any_of(inside))
        return (
            selected(spark, rows, selection)
            .repartition(len(ranges), "topic", "partition")
            .dropDuplicates(["topic", "partition", "offset"])
            .sortWithinPartitions("topic", "partition", "offset")
        )

    def _files_with(self, ranges: Sequence[OffsetRange]) -> list[DataFile]:
        """The files, as of now, that may hold some of these offsets."""
        return [
            file
            for file in self._table.snapshot().files
            if file.offsets is None
            or any(
                file.offsets[0] < planned.end and planned.start <= file.offsets[1]
                for planned in ranges
            )
        ]


def _any_of(conditions: "list[Column]") -> "Column":
    """A tree that is not deeper than it must be: a chain of a thousand would overflow Spark."""
    while len(conditions) > 1:
        pairs = [conditions[at] | conditions[at + 1] for at in range(0, len(conditions) - 1, 2)]
        conditions = pairs + ([conditions[-1]] if len(conditions) % 2 else [])
    return conditions[0]


def _take_bounds(
    kept: Any, selection: Selection, bounds: dict[tuple[str, int], tuple[int, int]]
) -> int:
    """Widen `bounds` by some rows; how many of them are meant."""
    import pyarrow.compute as pc

    rows = 0
    places = kept.group_by(["topic", "partition"]).aggregate([])
    for place in places.to_pylist():
        topic, partition = place["topic"], place["partition"]
        span = selection.span(topic, partition)
        if span is None:
            continue
        mask = pc.and_(
            pc.equal(kept.column("topic"), topic), pc.equal(kept.column("partition"), partition)
        )
        offsets = kept.filter(mask).column("offset")
        if span.first is not None:
            offsets = offsets.filter(pc.greater_equal(offsets, span.first))
        if span.end is not None:
            offsets = offsets.filter(pc.less(offsets, span.end))
        if not len(offsets):
            continue
        rows += len(offsets)
        found = pc.min_max(offsets).as_py()
        low, high = bounds.get((topic, partition), (found["min"], found["max"]))
        bounds[topic, partition] = (min(low, found["min"]), max(high, found["max"]))
    return rows


def _value_column(schema: Any, location: str) -> str:
    """The column that holds what was in the topic, byte for byte."""
    import pyarrow as pa

    for name in ("value", "raw"):
        if name in schema.names and (
            pa.types.is_binary(schema.field(name).type)
            or pa.types.is_large_binary(schema.field(name).type)
        ):
            return name
    raise InvalidArgumentError(
        f"the table at {location} holds decoded values, which cannot be made bytes again",
        hint="replay from the topic (--topic), or from an archive of raw values",
    )
