"""The report of an audit: counts and offset ranges per partition, and whether all is correct.

Both kinds of audits produce rows of `topic`, `partition` and `offset` with the columns of
`COUNTED`. A report has plain values only: `-o json` prints it, the status topic stores it, and the
command line shows it as tables.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import ClientError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.pipelines.audit.cut import Bounds, Cut
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.pipelines.spec import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRONG: Final = ("missing", "duplicated", "extra", "altered")
KINDS: Final = (*WRONG, "dead")
COUNTED: Final = ("source_rows", "target_rows", *KINDS, "expired", "after_cut", "unmatched")
"""`dead` records are in the dead-letter topic instead; `expired` rows are below the start of the
log; `unmatched` inputs of a copy have null in all terms of --match."""
RANGES_MAX: Final = 20
"""Reported ranges of one kind in one partition; the counts have no limit."""

Found = dict[TopicPartition, dict[str, Any]]
"""For each partition the counts, and `ranges` by kind: lists of first offset, last offset, and the
number of differences between them."""


def find(compared: "DataFrame") -> Found:
    """Counts differences, and finds their ranges. ClientError for rows without an offset."""
    # Persisted, so that counts and ranges agree.
    rows = compared.persist()
    try:
        found = _counted(rows)
        if any(counts.get(kind) for counts in found.values() for kind in KINDS):
            _add_ranges(rows, found)
        return found
    finally:
        rows.unpersist()


def _counted(rows: "DataFrame") -> Found:
    from pyspark.sql import functions as F  # noqa: N812

    names = [name for name in COUNTED if name in rows.columns]
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    is_lost = (F.col("partition").isNull() | F.col("offset").isNull()).alias("lost")
    found: Found = {}
    for row in rows.groupBy("topic", "partition", is_lost).agg(*sums).collect():
        if row["lost"]:
            raise ClientError(
                f"{row['target_rows']} rows of the table have no partition or offset, so they "
                "cannot be compared"
            )
        found[_tp(row)] = {name: row[name] for name in names}
    return found


def _add_ranges(rows: "DataFrame", found: Found) -> None:
    """Offsets that are no records, such as transaction markers, do not split a range."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    kinds = [F.when(F.col(kind) > 0, F.lit(kind)) for kind in KINDS if kind in rows.columns]
    in_order = Window.partitionBy("topic", "partition").orderBy("offset")
    alike = Window.partitionBy("topic", "partition", "kind")
    number = F.col("number") - F.row_number().over(alike.orderBy("offset"))
    named = (
        rows.withColumn("number", F.row_number().over(in_order))
        .withColumn("kind", F.explode(F.array_compact(F.array(*kinds))))
        .withColumn("range", number)
        .groupBy("topic", "partition", "kind", "range")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("n"))
        .withColumn("at", F.row_number().over(alike.orderBy("first")))
        .where(F.col("at") <= RANGES_MAX)
    )
    for row in named.orderBy("topic", "partition", "kind", "first").collect():
        ranges = found[_tp(row)].setdefault("ranges", {})
        ranges.setdefault(row["kind"], []).append([row["first"], row["last"], row["n"]])


def _tp(row: Any) -> TopicPartition:
    return TopicPartition(row["topic"], PartitionIndex(row["partition"]))


def partition_report(
    tp: TopicPartition,
    bounds: Bounds,
    found: Mapping[str, Any],
    *,
    extra_is_fine: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """The report of one partition. A count is None if that side has no such partition.

    Extra rows are fine where the broker may have deleted records that the other side still has.
    """
    counts = {**dict.fromkeys(COUNTED, 0), "ranges": {}, **found, **more}
    is_wrong = any(counts[kind] for kind in WRONG if not (kind == "extra" and extra_is_fine))
    return {**tp._asdict(), **bounds._asdict(), "ok": not is_wrong, **counts}


def undecodable(
    format: str, values: int, bad: int, *, share_max: float, example: str = ""
) -> dict[str, Any]:
    """The report of values that do not match the schema."""
    share = bad / values if values else 0.0
    counts = {"format": format, "values": values, "undecodable": bad, "share": share}
    return {**counts, "example": example, "ok": share <= share_max}


def outcome(
    settings: AuditSettings,
    cut: Cut,
    partitions: Sequence[Mapping[str, Any]],
    *,
    against: str,
    compared: Sequence[str],
    not_compared: Sequence[str] = (),
    undecodable: Mapping[str, Any] | None = None,
    version: int | None = None,
    notes: Sequence[str] = (),
) -> Outcome:
    """`against` is the table's location, or the other topic; `version` is that of the table.

    `not_compared` are columns that the table does not store as the topics do.
    """
    totals = {name: sum(each[name] or 0 for each in partitions) for name in COUNTED}
    wrong = []
    if not_compared:
        wrong.append(
            f"NOT COMPARED: {', '.join(not_compared)}, which the table does not store as the "
            "topics do (archive with --keep-raw, or audit with --ignore)"
        )
    if undecodable is not None and not undecodable["ok"]:
        wrong.append(f"{undecodable['share']:.2%} of the values cannot be decoded")
    # A group without a commit lags by the whole partition.
    lags = [at["end"] if at["lag"] is None else at["lag"] for at in cut.groups]
    most = settings.lag_max
    if most is not None and (late := sum(lag > most for lag in lags)):
        wrong.append(f"the lag of {late} partitions exceeds {most}")
    # There are records, but none was compared: that proves nothing.
    sources = [each for each in partitions if each["source_rows"] is not None]
    is_there = any(each["latest"] > each["start"] for each in sources)
    is_idle = is_there and not any(each["end"] > each["start"] for each in sources)
    if is_idle or 0 < totals["source_rows"] == totals["unmatched"]:
        wrong.append("nothing was compared, so nothing is proved")
    counts = ", ".join(f"{totals[kind]:,} {kind}" for kind in WRONG)
    summary = (
        f"{', '.join(settings.topics)} against {against}: {totals['source_rows']:,} records, "
        f"{totals['target_rows']:,} found: {counts}"
    )
    is_ok = not wrong and all(each["ok"] for each in partitions)
    details = {
        "ok": is_ok,
        "topics": list(settings.topics),
        "against": against,
        "version": version,
        "compared": list(compared),
        "not_compared": list(not_compared),
        "totals": totals,
        "partitions": list(partitions),
        "groups": cut.groups,
        "undecodable": undecodable,
        "notes": list(notes),
    }
    rows = totals["source_rows"] + totals["target_rows"]
    return Outcome(ok=is_ok, summary="; ".join([summary, *wrong]), rows=rows, details=details)
