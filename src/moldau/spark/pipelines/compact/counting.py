"""Owns what is counted before anything is committed: rows, duplicates, old versions, a checksum.

The checksum is the sum, modulo 2⁶⁴, of a hash of every column of every row, so that the order of
rows does not matter. What is to stay is found here by grouping; who writes finds it in another way
(`rewriting`), and the two are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.spark.pipelines.tables import IDENTITY, row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MODULUS: Final = 2**64
_NAMED_MAX: Final = 10
_SUMMABLE: Final = "decimal(20,0)"
"""A hash has 64 bits, and their sum more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What some files hold of one partition of a topic, in one partition of the table."""

    part: tuple[str, ...]
    topic: str
    partition: int
    rows: int
    distinct: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What some files hold, and what of it is to stay."""

    rows: int
    duplicates: int
    older: int
    """Rows with a newer one of the same key."""
    tombstones: int
    """That go."""
    kept: int
    checksum: int
    """Of the rows that stay."""
    differing: tuple[str, ...] = ()
    """Some that have the same topic, partition and offset, and are not the same."""
    places: tuple[Place, ...] = field(default=(), repr=False)

    def adds_up(self) -> bool:
        return self.rows == self.kept + self.duplicates + self.older + self.tombstones


def places_of(rows: "DataFrame", part_columns: Sequence[str]) -> tuple[Place, ...]:
    """Needs no columns but the identity of rows and those by which the table is partitioned."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        rows.groupBy(*part_columns, *IDENTITY)
        .agg(F.count(F.lit(1)).alias("n"))
        .groupBy(*part_columns, "topic", "partition")
        .agg(
            F.sum("n").alias("rows"),
            F.count(F.lit(1)).alias("distinct"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        .collect()
    )
    return tuple(_place(row, part_columns) for row in found)


def take_census(
    rows: "DataFrame",
    part_columns: Sequence[str],
    *,
    latest_per_key: bool = False,
    drop_tombstones: bool = False,
) -> Census:
    """`rows` have all columns of the table."""
    from pyspark.sql import functions as F  # noqa: N812

    hashed = rows.select(
        *part_columns,
        *IDENTITY,
        "key",
        "timestamp",
        F.col("value").isNull().alias("dead"),
        row_hash(rows, sorted(rows.columns)).alias("hash"),
    )
    distinct = hashed.groupBy(*IDENTITY).agg(
        F.count(F.lit(1)).alias("n"),
        F.min("hash").alias("hash"),
        (F.min("hash") != F.max("hash")).alias("differs"),
        *(F.first(name).alias(name) for name in (*part_columns, "key", "timestamp", "dead")),
    )
    if not latest_per_key:
        return _counted(distinct, part_columns)
    distinct = distinct.persist()
    try:
        all_of_them = _counted(distinct, part_columns)
        newest = _newest(distinct, drop_tombstones=drop_tombstones)
    finally:
        distinct.unpersist()
    return replace(
        all_of_them,
        kept=newest.kept,
        checksum=newest.checksum,
        tombstones=newest.tombstones,
        older=all_of_them.kept - newest.kept - newest.tombstones,
    )


def _counted(distinct: "DataFrame", part_columns: Sequence[str]) -> Census:
    """If every row stays that is not there twice."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        distinct.groupBy(*part_columns, "topic", "partition")
        .agg(
            F.sum("n").alias("rows"),
            F.count(F.lit(1)).alias("distinct"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.sum(F.col("differs").cast("int")).alias("differing"),
            F.sum(F.col("hash").cast(_SUMMABLE)).alias("sum"),
        )
        .collect()
    )
    named: tuple[str, ...] = ()
    if any(row["differing"] for row in found):
        named = tuple(
            f"{row['topic']}-{row['partition']} offset {row['offset']}"
            for row in distinct.where("differs").orderBy(*IDENTITY).limit(_NAMED_MAX).collect()
        )
    places = tuple(_place(row, part_columns) for row in found)
    rows, kept = sum(place.rows for place in places), sum(place.distinct for place in places)
    return Census(
        rows=rows,
        duplicates=rows - kept,
        older=0,
        tombstones=0,
        kept=kept,
        checksum=sum(int(row["sum"]) for row in found) % _MODULUS,
        differing=named,
        places=places,
    )


def _place(row: Any, part_columns: Sequence[str]) -> Place:
    return Place(
        part=tuple(str(row[name]) for name in part_columns),
        topic=row["topic"],
        partition=row["partition"],
        rows=row["rows"],
        distinct=row["distinct"],
        first=row["first"],
        last=row["last"],
    )


class _Newest(NamedTuple):
    kept: int
    tombstones: int
    checksum: int


def _newest(distinct: "DataFrame", *, drop_tombstones: bool) -> _Newest:
    """In a partition a higher offset is newer; between partitions of a topic, a later time is.

    Rows without a key are no versions of anything.
    """
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
    gone = F.col("dead") if drop_tombstones else F.lit(False)
    found = (
        keyed.unionByName(keyless)
        .agg(
            F.count(F.when(~gone, 1)).alias("kept"),
            F.count(F.when(gone, 1)).alias("gone"),
            F.sum(F.when(~gone, F.col("hash").cast(_SUMMABLE))).alias("sum"),
        )
        .collect()[0]
    )
    return _Newest(int(found["kept"]), int(found["gone"]), int(found["sum"] or 0) % _MODULUS)
