"""Responsible for what is counted before anything is committed: rows, duplicates, a checksum.

The checksum is the sum, modulo 2⁶⁴, of a hash of every column of every row, so that the order of
rows does not matter. What is to stay is found here by grouping; who writes finds it by windows
(`moldau.spark.pipelines.newest`), and the two are compared.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.spark.pipelines.tables import IDENTITY, row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MODULUS: Final = 2**64
_NAMED_MAX: Final = 10
_SUMMABLE: Final = "decimal(20,0)"
"""A hash has 64 bits, and their sum more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What some files hold, and what of it is to stay."""

    rows: int = 0
    duplicates: int = 0
    older: int = 0
    """Rows with a newer one of the same key."""
    tombstones: int = 0
    """That go."""
    kept: int = 0
    checksum: int = 0
    """Of the rows that stay."""
    differing: tuple[str, ...] = ()
    """Some that have the same topic, partition and offset, and are not the same."""


def take_census(
    rows: "DataFrame", *, latest_per_key: bool = False, drop_tombstones: bool = False
) -> Census:
    """`rows` have all columns of the table."""
    from pyspark.sql import functions as F  # noqa: N812

    hashed = rows.select(
        *IDENTITY,
        "key",
        "timestamp",
        F.col("value").isNull().alias("dead"),
        row_hash(rows, sorted(rows.columns)).alias("hash"),
    )
    distinct = (
        hashed.groupBy(*IDENTITY)
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.min("hash").alias("hash"),
            (F.min("hash") != F.max("hash")).alias("differs"),
            *(F.first(name).alias(name) for name in ("key", "timestamp", "dead")),
        )
        .persist()
    )
    try:
        read = distinct.agg(
            F.coalesce(F.sum("n"), F.lit(0)).alias("rows"),
            F.count(F.lit(1)).alias("distinct"),
            F.max("differs").alias("differs"),
        ).collect()[0]
        stays = _newest(distinct) if latest_per_key else distinct.select("dead", "hash")
        goes = F.col("dead") if drop_tombstones else F.lit(False)
        found = stays.agg(
            F.count(F.when(~goes, 1)).alias("kept"),
            F.count(F.when(goes, 1)).alias("tombstones"),
            F.sum(F.when(~goes, F.col("hash").cast(_SUMMABLE))).alias("sum"),
        ).collect()[0]
        differing = _differing(distinct) if read["differs"] else ()
    finally:
        distinct.unpersist()
    return Census(
        rows=read["rows"],
        duplicates=read["rows"] - read["distinct"],
        older=read["distinct"] - found["kept"] - found["tombstones"],
        tombstones=found["tombstones"],
        kept=found["kept"],
        checksum=int(found["sum"] or 0) % _MODULUS,
        differing=differing,
    )


def _newest(distinct: "DataFrame") -> "DataFrame":
    """Rows without a key are no versions of anything."""
    from pyspark.sql import functions as F  # noqa: N812

    keyed = (
        distinct.where(F.col("key").isNotNull())
        .groupBy("topic", "partition", "key")
        .agg(F.max(F.struct("offset", "timestamp", "dead", "hash")).alias("row"))
        .groupBy("topic", "key")
        .agg(F.max(F.struct("row.timestamp", "partition", "row.dead", "row.hash")).alias("row"))
        .select("row.dead", "row.hash")
    )
    keyless = distinct.where(F.col("key").isNull()).select(F.lit(False).alias("dead"), "hash")
    return keyed.unionByName(keyless)


def _differing(distinct: "DataFrame") -> tuple[str, ...]:
    found = distinct.where("differs").orderBy(*IDENTITY).limit(_NAMED_MAX).collect()
    return tuple(f"{row['topic']}-{row['partition']} offset {row['offset']}" for row in found)
