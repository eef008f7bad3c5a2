"""Owns the new files: which rows come into them, in which order, and how tasks write them.

Every new file is a bucket: neighbours by topic, partition and offset, of one partition of the
table. So a reader who wants some offsets opens few files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.spark.lake.table import DataFile, LakeTable, Layout
from moldau.spark.pipelines.compact.counting import Place
from moldau.spark.pipelines.tables import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKET: Final = "_bucket"
_WRITTEN: Final = "path string, rows long, bytes long, partition string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where the rows of a place go: `count` of them to the buckets from `bucket` on."""

    place: Place
    bucket: int
    before: int
    """Rows of the same partition of the table that come first."""
    bucket_rows: int


def slots_of(places: Sequence[Place], files: Mapping[tuple[str, ...], int]) -> list[Slot]:
    """`files` says how many files each partition of the table gets. Numbers buckets from 0 on."""
    slots = []
    bucket = 0
    for part in sorted({place.part for place in places}):
        inside = sorted(
            (place for place in places if place.part == part),
            key=lambda place: (place.topic, place.partition),
        )
        rows = sum(place.distinct for place in inside)
        count = min(files.get(part, 1), max(rows, 1))
        before = 0
        for place in inside:
            slots.append(
                Slot(
                    place=place, bucket=bucket, before=before, bucket_rows=max(1, -(-rows // count))
                )
            )
            before += place.distinct
        bucket += count
    return slots


def bucket_count(slots: Sequence[Slot], files: Mapping[tuple[str, ...], int]) -> int:
    parts = {slot.place.part for slot in slots}
    return max(1, sum(files.get(part, 1) for part in parts))


def kept_rows(rows: "DataFrame", *, latest_per_key: bool, drop_tombstones: bool) -> "DataFrame":
    """What stays, once each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    once = rows.dropDuplicates(list(IDENTITY))
    if not latest_per_key:
        return once
    in_partition = Window.partitionBy("topic", "partition", "key").orderBy(F.desc("offset"))
    in_topic = Window.partitionBy("topic", "key").orderBy(F.desc("timestamp"), F.desc("partition"))
    keyed = (
        once.where(F.col("key").isNotNull())
        .withColumn("_newest", F.row_number().over(in_partition))
        .where("_newest = 1")
        .withColumn("_newest", F.row_number().over(in_topic))
        .where("_newest = 1")
        .drop("_newest")
    )
    if drop_tombstones:
        keyed = keyed.where(F.col("value").isNotNull())
    return keyed.unionByName(once.where(F.col("key").isNull()))


def rewrite(
    spark: "SparkSession",
    table: LakeTable,
    schema: Any,
    rows: "DataFrame",
    slots: Sequence[Slot],
    buckets: int,
) -> tuple[DataFile, ...]:
    """Write rows to new files. They are nobody's until they are committed."""
    placed = _with_bucket(spark, rows, slots, table.partition_columns)
    order = [BUCKET, *IDENTITY]
    written = (
        placed.repartition(buckets, BUCKET)
        .sortWithinPartitions(*order)
        .mapInArrow(_Writer(table.layout, schema), _WRITTEN)
        .collect()
    )
    return tuple(
        DataFile(
            path=row["path"],
            rows=row["rows"],
            bytes=row["bytes"],
            partition=json.loads(row["partition"]),
        )
        for row in sorted(written, key=lambda row: str(row["path"]))
    )


def _with_bucket(
    spark: "SparkSession", rows: "DataFrame", slots: Sequence[Slot], part_columns: Sequence[str]
) -> "DataFrame":
    """By how far an offset is between the first and the last of its place."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [f"_part{at}" for at in range(len(part_columns))]
    known = spark.createDataFrame(
        [
            (
                *slot.place.part,
                slot.place.topic,
                slot.place.partition,
                slot.place.first,
                slot.place.last,
                slot.place.distinct,
                slot.bucket,
                slot.before,
                slot.bucket_rows,
            )
            for slot in slots
        ],
        ", ".join([f"{name} string" for name in names])
        + (", " if names else "")
        + "_topic string, _partition int, _first long, _last long, _count long, _base int, "
        "_before long, _rows long",
    )
    same: Column = (F.col("topic") == F.col("_topic")) & (F.col("partition") == F.col("_partition"))
    for name, column in zip(names, part_columns, strict=True):
        same = same & (F.coalesce(F.col(column).cast("string"), F.lit("None")) == F.col(name))
    share = (F.col("offset") - F.col("_first")) / (F.col("_last") - F.col("_first") + F.lit(1))
    at = F.col("_before") + F.floor(share * F.col("_count"))
    bucket = (F.col("_base") + F.floor(at / F.col("_rows"))).cast("int")
    columns = rows.columns
    # Left: a row whose place nobody counted is written, and then found by the comparison.
    return rows.join(F.broadcast(known), same, "left").select(
        *columns, F.coalesce(bucket, F.lit(-1)).alias(BUCKET)
    )


class _Writer:
    """Writes the buckets of a task, one after another. Travels there."""

    def __init__(self, layout: Layout, schema: Any) -> None:
        self._layout = layout
        self._schema = schema

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        files: list[DataFile] = []
        for bucket in _buckets(batches):
            files += self._written(bucket)
        names = ["path", "rows", "bytes", "partition"]
        types = [pa.string(), pa.int64(), pa.int64(), pa.string()]
        rows = [
            (file.path, file.rows, file.bytes, json.dumps(dict(file.partition))) for file in files
        ]
        columns = zip(*rows, strict=True) if rows else ([], [], [], [])
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)],
            names=names,
        )

    def _written(self, batches: Iterable[Any]) -> tuple[DataFile, ...]:
        from moldau.spark.lake.files import write_files

        return write_files(self._layout, self._schema, batches, label="compact")


def _buckets(batches: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Rows that are sorted by their bucket, bucket by bucket; each has to be read to its end."""
    from itertools import groupby

    def pieces() -> Iterator[tuple[int, Any]]:
        import pyarrow.compute as pc

        for batch in batches:
            column = batch.column(BUCKET)
            inner = batch.drop_columns([BUCKET])
            for number in column.unique().to_pylist():
                yield number, inner.filter(pc.equal(column, number))

    for _, found in groupby(pieces(), key=lambda piece: piece[0]):
        yield (batch for _, batch in found)
