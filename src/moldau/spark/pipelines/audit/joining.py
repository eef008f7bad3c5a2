"""Owns the comparison of two sides by Spark: one full outer join, and what it tells.

Both sides are rows of `topic`, `partition`, `offset` and `hash`, which is made of all that is
compared. The topics have each place once; a table may have it often, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import ClientError
from moldau.model.queue_headers import DEAD_OFFSET_HEADER, DEAD_PARTITION_HEADER, DEAD_TOPIC_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PLACE: Final = ("topic", "partition", "offset")
RANGES_MAX: Final = 20
"""Of one kind in one partition that are named; the counts go on."""
_LIMITS: Final = "topic string, partition int, start bigint, end bigint, topic_end bigint"
SUMMABLE: Final = "decimal(20,0)"
"""A hash has 64 bits, and their sum more."""
_MODULUS: Final = 1 << 64


class Finding(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    ALTERED = "altered"
    DEAD = "dead"
    """Not in the table, but in the topic of dead letters: not lost."""


class Range(NamedTuple):
    """Offsets from `first` to `last`, of which there are `rows`; others between may be holes."""

    first: int
    last: int
    rows: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


class Limits(NamedTuple):
    """Of one partition, what is compared: offsets from `start` to before `end`."""

    start: int
    end: int
    topic_end: int
    """Where the topic ended after the table was looked at: no row of it can come from behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the join says of one partition."""

    source_rows: int
    target_rows: int
    source_checksum: str
    target_checksum: str
    expired_rows: int
    """Below the start of the log: nothing is left to compare these rows with."""
    after_cut: int
    found: Mapping[Finding, int]


Place = tuple[str, int]


def dead_places(letters: "DataFrame") -> "DataFrame":
    """Where dead letters, rows of a topic with headers, come from; those that say it."""
    from pyspark.sql import functions as F  # noqa: N812

    def last(name: str) -> "Column":
        # The last one of a name is that of whoever wrote the letter.
        named = F.filter(F.col("headers"), lambda header: header["key"] == name)
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")

    told = letters.select(
        last(DEAD_TOPIC_HEADER).alias("topic"),
        last(DEAD_PARTITION_HEADER).try_cast("int").alias("partition"),
        last(DEAD_OFFSET_HEADER).try_cast("bigint").alias("offset"),
    )
    return told.dropna().distinct()


class Comparison:
    """Two sides, joined. Keeps what it read until it is closed, so that counts and ranges agree."""

    def __init__(
        self,
        spark: "SparkSession",
        source: "DataFrame",
        target: "DataFrame",
        limits: Mapping[Place, Limits],
        dead: "DataFrame | None" = None,
    ) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        there = target.groupBy(*PLACE).agg(
            F.count(F.lit(1)).alias("n"),
            F.sum(F.col("hash").cast(SUMMABLE)).alias("sum"),
            F.min("hash").alias("low"),
            F.max("hash").alias("high"),
        )
        known = spark.createDataFrame([(*place, *each) for place, each in limits.items()], _LIMITS)
        both = source.withColumnRenamed("hash", "wanted").join(there, list(PLACE), "full_outer")
        both = both.join(F.broadcast(known), ["topic", "partition"], "left")
        is_dead = F.lit(False)
        if dead is not None:
            both = both.join(dead.withColumn("dead", F.lit(True)), list(PLACE), "left")
            is_dead = F.col("dead").isNotNull()
        here, n = F.col("wanted").isNotNull(), F.coalesce("n", F.lit(0))
        expired = F.coalesce(F.col("offset") < F.col("start"), F.lit(False))
        later = (F.col("offset") >= F.col("end")) & (F.col("offset") < F.col("topic_end"))
        later = F.coalesce(later, F.lit(False))
        altered = (F.col("low") != F.col("wanted")) | (F.col("high") != F.col("wanted"))
        rows = {
            Finding.MISSING: F.when(here & (n == 0) & ~is_dead, 1),
            Finding.DEAD: F.when(here & (n == 0) & is_dead, 1),
            Finding.EXTRA: F.when(~here & ~expired & ~later, n),
            Finding.DUPLICATED: F.when((n > 1) & ~later, n - 1),
            Finding.ALTERED: F.when(here & (n > 0) & altered, 1),
        }
        self._rows = both.select(
            *PLACE,
            F.when(here, 1).alias("source_rows"),
            F.when(~expired & ~later, n).alias("target_rows"),
            F.when(expired, n).alias("expired_rows"),
            F.when(later, n).alias("after_cut"),
            F.col("wanted").cast(SUMMABLE).alias("source_sum"),
            F.when(~expired & ~later, F.col("sum")).alias("target_sum"),
            *(count.alias(str(kind)) for kind, count in rows.items()),
        ).persist()

    def close(self) -> None:
        self._rows.unpersist()

    def counts(self) -> dict[Place, Counts]:
        """Raises ClientError if rows of the table have no place."""
        from pyspark.sql import functions as F  # noqa: N812

        names = [name for name in self._rows.columns if name not in PLACE]
        found = self._rows.groupBy("topic", "partition", F.col("offset").isNull().alias("lost"))
        result = {}
        for row in found.agg(*(F.sum(name).alias(name) for name in names)).collect():
            if row["topic"] is None or row["partition"] is None or row["lost"]:
                raise ClientError(
                    f"{row['target_rows']} rows of the table have no topic, partition or offset, "
                    "so nobody can tell which records they are"
                )
            result[row["topic"], row["partition"]] = Counts(
                source_rows=row["source_rows"] or 0,
                target_rows=row["target_rows"] or 0,
                source_checksum=checksum(row["source_sum"]),
                target_checksum=checksum(row["target_sum"]),
                expired_rows=row["expired_rows"] or 0,
                after_cut=row["after_cut"] or 0,
                found={kind: row[str(kind)] for kind in Finding if row[str(kind)]},
            )
        return result

    def ranges(self) -> dict[Place, dict[Finding, list[Range]]]:
        """Where the first findings of each kind are.

        Two share a range if no other record lies between them: so a transaction's marker, an
        offset that nobody reads, does not cut what is missing into pieces.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        in_order = Window.partitionBy("topic", "partition").orderBy("offset")
        kinds = F.array(*(F.when(F.col(str(kind)) > 0, F.lit(str(kind))) for kind in Finding))
        return first_ranges(
            self._rows.withColumn("number", F.row_number().over(in_order)).withColumn(
                "kind", F.explode(F.array_compact(kinds))
            )
        )


def first_ranges(findings: "DataFrame") -> dict[Place, dict[Finding, list[Range]]]:
    """Of rows with a place and a kind; those whose numbers follow each other share a range."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    together = Window.partitionBy("topic", "partition", "kind")
    named = (
        findings.withColumn(
            "island", F.col("number") - F.row_number().over(together.orderBy("offset"))
        )
        .groupBy("topic", "partition", "kind", "island")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("rows"),
        )
        .withColumn("at", F.row_number().over(together.orderBy("first")))
        .where(F.col("at") <= RANGES_MAX)
    )
    result: dict[Place, dict[Finding, list[Range]]] = {}
    for row in named.orderBy("topic", "partition", "kind", "first").collect():
        place = result.setdefault((row["topic"], row["partition"]), {})
        place.setdefault(Finding(row["kind"]), []).append(
            Range(row["first"], row["last"], row["rows"])
        )
    return result


def checksum(total: Any) -> str:
    """Of a sum of hashes."""
    return f"{int(total or 0) % _MODULUS:016x}"
