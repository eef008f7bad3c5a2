"""Owns the rows of a replay as Spark has them: which are read, in which order, and as what written.

A partition of the source is read by one task, from its first offset to its last, and that task
writes it: nothing between the two moves rows from one task to another.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from moldau.spark.pipelines.replay.pinned import Pinned
from moldau.spark.pipelines.replay.selection import Selection
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORIGIN_TOPIC_HEADER: Final = "moldau-origin-topic"
ORIGIN_PARTITION_HEADER: Final = "moldau-origin-partition"
ORIGIN_OFFSET_HEADER: Final = "moldau-origin-offset"

_INLINE_KEYS_MAX: Final = 100
"""More than that are looked up in a table of their own: a query of many words is slow to plan."""


def topic_rows(
    spark: "SparkSession", options: dict[str, str], ranges: Sequence[OffsetRange]
) -> "DataFrame":
    """The rows of a batch from topics, each partition in one task and in order."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for planned in ranges:
        assigned.setdefault(planned.topic, []).append(planned.partition)
        starts.setdefault(planned.topic, {})[str(planned.partition)] = planned.start
        ends.setdefault(planned.topic, {})[str(planned.partition)] = planned.end
    return (
        spark.read.format("moldau")
        .options(**options)
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def selected(spark: "SparkSession", rows: "DataFrame", selection: Selection) -> "DataFrame":
    """Those that times and keys select. Offsets were seen to before."""
    from pyspark.sql import functions as F  # noqa: N812

    if selection.from_ms is not None:
        rows = rows.where(F.col("timestamp") >= F.timestamp_millis(F.lit(selection.from_ms)))
    if selection.to_ms is not None:
        rows = rows.where(F.col("timestamp") < F.timestamp_millis(F.lit(selection.to_ms)))
    if selection.keys is None:
        return rows
    keys = sorted(selection.keys)
    if len(keys) <= _INLINE_KEYS_MAX:
        return rows.where(F.col("key").isin([F.lit(bytearray(key)) for key in keys]))
    wanted = spark.createDataFrame([(bytearray(key),) for key in keys], "key binary")
    # Broadcast, so that rows stay in their task and in their order.
    return rows.join(F.broadcast(wanted), "key", "left_semi")


def to_send(rows: "DataFrame", pinned: Pinned, *, origin_headers: bool) -> "DataFrame":
    """As the sink takes them: with the partition they go to, where it is not the key's to say."""
    from pyspark.sql import functions as F  # noqa: N812

    if pinned.keep_partitions:
        partition = F.col("partition")
    else:
        # Rows without a key stay together with their neighbours, in their order.
        partition = F.when(
            F.col("key").isNull(), F.col("partition") % F.lit(pinned.target_partitions)
        )
    headers = _with_origin() if origin_headers else F.col("headers")
    return rows.select(
        "key",
        "value",
        headers.alias("headers"),
        partition.cast("int").alias("partition"),
        "timestamp",
    )


def _with_origin() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str, value: Any) -> "Column":
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    origin = F.array(
        header(ORIGIN_TOPIC_HEADER, F.col("topic")),
        header(ORIGIN_PARTITION_HEADER, F.col("partition")),
        header(ORIGIN_OFFSET_HEADER, F.col("offset")),
    )
    none = F.array().cast("array<struct<key:string,value:binary>>")
    return F.concat(F.coalesce(F.col("headers"), none), origin)
