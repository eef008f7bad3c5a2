"""Responsible for which of several rows with one key is the newest.

In a partition a higher offset is newer. Records of one key are in one partition, unless the number
of partitions has changed: then, of the newest of each, that with the latest time is.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from moldau.spark.pipelines.tables import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def once(rows: "DataFrame") -> "DataFrame":
    """Each record once, however often it was written."""
    return rows.dropDuplicates(list(IDENTITY))


def newest(rows: "DataFrame", keys: "Sequence[str | Column]") -> "DataFrame":
    """Of each topic and key the newest row. Rows without a key are no versions of anything."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    has_key = reduce(and_, (column.isNotNull() for column in columns))
    kept = rows.where(has_key)
    for places, order in (
        (("topic", "partition"), ("offset",)),
        (("topic",), ("timestamp", "partition")),
    ):
        window = Window.partitionBy(*places, *columns).orderBy(*map(F.desc, order))
        kept = kept.withColumn("_newest", F.row_number().over(window)).where("_newest = 1")
    return kept.drop("_newest").unionByName(rows.where(~has_key))
