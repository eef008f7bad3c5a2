"""Owns the audit of a copy: each record of the topics exactly once in another topic.

The order of what is asked for makes it right while everything runs: first where the inputs end that
must have been copied, then where the copy ends, then where the inputs end by now. A copy of an
input that came in between is allowed, and need not be there.

Records are the same if what `--match` names is. Where it is in the inputs n times, n copies are
right: the records of both sides that are the same are numbered by their places, and joined by that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.model.ids import TopicPartition
from moldau.spark.pipelines.audit.cut import Bounds, take_cut, whole_topics
from moldau.spark.pipelines.audit.joining import (
    PLACE,
    SUMMABLE,
    Finding,
    Place,
    Range,
    checksum,
    first_ranges,
)
from moldau.spark.pipelines.audit.matching import DEFAULT, expression
from moldau.spark.pipelines.audit.report import Offsets, PartitionReport, Report
from moldau.spark.pipelines.audit.settings import AuditSettings
from moldau.spark.pipelines.audit.sides import topic_rows
from moldau.spark.pipelines.spec import Context, Progress
from moldau.spark.pipelines.tables import row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAME: Final = ("identity", "number")

Places = Mapping[TopicPartition, Bounds]
Found = dict[Place, dict[Finding, Offsets]]


class CopyAudit:
    """One audit of topics against another topic."""

    def __init__(self, settings: AuditSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._target = settings.against_topic or ""
        self._terms = settings.match or DEFAULT
        self._target_terms = settings.match_against or self._terms
        # Wrong words are told before anything is read.
        self._expressions = [expression(term) for term in self._terms]
        self._target_expressions = [expression(term) for term in self._target_terms]
        self._cut = take_cut(settings)
        self._outputs = whole_topics(settings, (self._target,))
        self._inputs_now = whole_topics(settings, settings.topics)
        self._notes: list[str] = []

    def report(self) -> Report:
        from pyspark.sql import functions as F  # noqa: N812

        places = (*self._cut.places.values(), *self._outputs.values())
        planned = sum(bounds.end - bounds.start for bounds in places)
        self._context.report(Progress(rows_total=planned, note="comparing"))
        # Read once, so that counts and findings are of the same rows.
        wanted = self._side(self._cut.places, self._expressions).persist()
        copied = self._side(self._outputs, self._target_expressions).persist()
        try:
            counts = {**_counts(wanted), **_counts(copied)}
            alike = wanted.where(F.col("is_nothing")).count()
            found = self._compared(wanted, copied)
        finally:
            wanted.unpersist()
            copied.unpersist()
        self._context.report(Progress(rows=planned, rows_total=planned))
        if alike:
            self._notes.append(
                f"{alike} records of the topics are only counted: what they are matched by "
                f"({', '.join(self._terms)}) is null in them; see --match"
            )
        compared = [
            term if term == other else f"{term} = {other}"
            for term, other in zip(self._terms, self._target_terms, strict=True)
        ]
        return Report(
            topics=self._settings.topics,
            against=self._target,
            compared=tuple(compared),
            partitions=tuple(self._partitions(counts, found)),
            positions=self._cut.positions,
            lag_max=self._settings.lag_max,
            notes=tuple(self._notes),
            unmatched=alike,
        )

    def _side(self, places: Places, expressions: Iterable[str]) -> "DataFrame":
        """The rows of a side: their places, and what makes them the same."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = topic_rows(self._context.spark, self._settings, places)
        names = [f"({text}) AS match{number}" for number, text in enumerate(expressions)]
        # Wrong SQL is the user's: Spark says what is wrong with it when the columns are named.
        chosen = rows.selectExpr(*PLACE, *names)
        matched = [name for name in chosen.columns if name not in PLACE]
        # Text and bytes of the same content are the same.
        plain = chosen.select(
            *PLACE,
            *(
                F.col(name)
                if chosen.schema[name].dataType.typeName() == "binary"
                else F.col(name).cast("string").cast("binary").alias(name)
                for name in matched
            ),
        )
        is_nothing = F.lit(True)
        for name in matched:
            is_nothing = is_nothing & F.col(name).isNull()
        return plain.select(
            *PLACE, row_hash(plain, matched).alias("identity"), is_nothing.alias("is_nothing")
        )

    # -- comparing

    def _compared(self, wanted: "DataFrame", copied: "DataFrame") -> Found:
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        inputs = wanted.withColumn("is_optional", F.lit(False))
        if later := self._later():
            allowed = self._side(later, self._expressions)
            inputs = inputs.unionByName(allowed.withColumn("is_optional", F.lit(True)))
        same = Window.partitionBy("identity")
        numbered = inputs.withColumn(
            "number", F.row_number().over(same.orderBy("is_optional", *PLACE))
        ).select(*_SAME, "is_optional", F.struct(*PLACE).alias("input"))
        copies = copied.withColumn("number", F.row_number().over(same.orderBy(*PLACE))).select(
            *_SAME, F.struct(*PLACE).alias("output")
        )
        is_known = F.max(F.col("input").isNotNull()).over(same)
        both = numbered.join(copies, list(_SAME), "full_outer").withColumn("is_known", is_known)
        kind = (
            F.when(F.col("output").isNull() & ~F.col("is_optional"), str(Finding.MISSING))
            .when(F.col("input").isNull() & F.col("is_known"), str(Finding.DUPLICATED))
            .when(F.col("input").isNull(), str(Finding.EXTRA))
        )
        findings = (
            both.select(F.coalesce("input", "output").alias("at"), kind.alias("kind"))
            .where(F.col("kind").isNotNull())
            .select("at.*", "kind", F.col("at.offset").alias("number"))
            .persist()
        )
        try:
            rows = findings.groupBy("topic", "partition", "kind").count().collect()
            ranges = first_ranges(findings) if rows else {}
        finally:
            findings.unpersist()
        found: Found = {}
        for row in rows:
            place, kind_found = (row["topic"], row["partition"]), Finding(row["kind"])
            named: list[Range] = ranges.get(place, {}).get(kind_found, [])
            found.setdefault(place, {})[kind_found] = Offsets(
                rows=row["count"], ranges=tuple(named)
            )
        return found

    def _later(self) -> dict[TopicPartition, Bounds]:
        """What came into the topics since the cut; all partitions, if there is any."""
        rest = {
            place: replace(self._inputs_now.get(place, bounds), start=bounds.end)
            for place, bounds in self._cut.places.items()
        }
        return rest if any(bounds.end > bounds.start for bounds in rest.values()) else {}

    # -- telling

    def _partitions(
        self, counts: Mapping[Place, tuple[int, str]], found: Found
    ) -> list[PartitionReport]:
        is_cut_off = any(bounds.start > 0 for bounds in self._cut.places.values())
        if is_cut_off:
            self._notes.append(
                "the topics do not begin at offset 0: copies of records that retention removed "
                "cannot be told from extra ones, and are not held to be wrong"
            )
        result = []
        for is_source, places in ((True, self._cut.places), (False, self._outputs)):
            for place, bounds in sorted(places.items()):
                here = (place.topic, int(place.partition))
                rows, total = counts.get(here, (0, checksum(0)))
                result.append(
                    PartitionReport(
                        topic=place.topic,
                        partition=place.partition,
                        start=bounds.start,
                        end=bounds.end,
                        latest=bounds.latest,
                        source_rows=rows if is_source else None,
                        target_rows=None if is_source else rows,
                        source_checksum=total if is_source else None,
                        target_checksum=None if is_source else total,
                        is_compacted=is_cut_off,
                        found=found.get(here, {}),
                    )
                )
        return result


def _counts(side: "DataFrame") -> dict[Place, tuple[int, str]]:
    """By partition: how many rows, and the checksum of what makes them the same."""
    from pyspark.sql import functions as F  # noqa: N812

    found = side.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("rows"), F.sum(F.col("identity").cast(SUMMABLE)).alias("sum")
    )
    return {
        (row["topic"], row["partition"]): (row["rows"], checksum(row["sum"]))
        for row in found.collect()
    }
