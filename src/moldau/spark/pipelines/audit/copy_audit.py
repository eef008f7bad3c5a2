"""Responsible for the audit of a copy: each record of the topics exactly once in another topic.

The order of what is asked for makes it right while everything runs: first where the inputs end that
must have been copied, then where the copy ends, then where the inputs end by now. A copy of an
input that came in between is allowed, and need not be there.

Records are the same if what `--match` names is. Where it is in the inputs n times, n copies are
right: the records of each side that are the same are numbered by their places.
"""

from typing import TYPE_CHECKING

from moldau.spark.pipelines.audit import cut as cuts
from moldau.spark.pipelines.audit.report import find, outcome, partition_report
from moldau.spark.pipelines.audit.settings import AuditSettings, expression
from moldau.spark.pipelines.rows import IDENTITY, row_hash
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def audit_copy(settings: AuditSettings, context: PipelineContext) -> Outcome:
    from pyspark.sql import functions as F  # noqa: N812

    copy = settings.against_topic or ""
    terms = settings.match or ("key", "value")
    copy_terms = settings.match_against or terms
    cut = cuts.take_cut(settings)
    outputs = cuts.whole_topics(settings, (copy,))
    now = cuts.whole_topics(settings, settings.topics)
    planned = cuts.offset_count(cut.places) + cuts.offset_count(outputs)
    context.report(Progress(rows_total=planned, note="comparing"))
    ends = {place: each.end for place, each in now.items()}
    inputs = cuts.rows_and_later(context.spark, settings, cut.places, ends)
    copies = cuts.topic_rows(context.spark, settings, outputs)
    wanted = _identified(inputs, terms).withColumn("is_copy", F.lit(False))
    found_there = _identified(copies.withColumn("is_later", F.lit(False)), copy_terms)
    found = find(_judged(wanted.unionByName(found_there.withColumn("is_copy", F.lit(True)))))
    context.report(Progress(rows=planned, rows_total=planned))
    is_cut_off = any(bounds.start > 0 for bounds in cut.places.values())
    partitions = [
        partition_report(
            place, bounds, found.get(place, {}), extra_is_fine=is_cut_off, **{not_read: None}
        )
        for places, not_read in ((cut.places, "target_rows"), (outputs, "source_rows"))
        for place, bounds in sorted(places.items())
    ]
    notes = []
    if alike := sum(partition["unmatched"] for partition in partitions):
        notes.append(
            f"{alike} records of the topics are only counted: what they are matched by "
            f"({', '.join(terms)}) is null in them; see --match"
        )
    if is_cut_off:
        notes.append(
            "the topics do not begin at offset 0: copies of records that retention removed "
            "cannot be told from extra ones, and are not held to be wrong"
        )
    pairs = zip(terms, copy_terms, strict=True)
    compared = [one if one == other else f"{one} = {other}" for one, other in pairs]
    return outcome(settings, cut, partitions, against=copy, compared=compared, notes=notes)


def _identified(rows: "DataFrame", terms: tuple[str, ...]) -> "DataFrame":
    """The rows of a side: their places, and what makes them the same."""
    from pyspark.sql import functions as F  # noqa: N812

    matched = [f"match{number}" for number in range(len(terms))]
    said = [f"({expression(term)}) AS {name}" for term, name in zip(terms, matched, strict=True)]
    # Wrong SQL is the user's: Spark says what is wrong with it when the columns are named.
    chosen = rows.selectExpr(*IDENTITY, "is_later", *said)
    for name in matched:
        # Text and bytes of the same content are the same.
        if chosen.schema[name].dataType.typeName() != "binary":
            chosen = chosen.withColumn(name, F.col(name).cast("string").cast("binary"))
    return chosen.select(
        *IDENTITY,
        "is_later",
        row_hash(chosen, matched).alias("identity"),
        F.coalesce(*matched).isNull().alias("is_nothing"),
    )


def _judged(rows: "DataFrame") -> "DataFrame":
    """Of n inputs that are the same, the first n copies are right, and the others too many."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    same = Window.partitionBy("identity")
    in_order = Window.partitionBy("identity", "is_copy").orderBy("is_later", *IDENTITY)
    numbered = rows.select(
        "*",
        F.row_number().over(in_order).alias("number"),
        F.count_if(~F.col("is_copy")).over(same).alias("inputs"),
        F.count_if("is_copy").over(same).alias("copies"),
    )
    is_copy, inputs = F.col("is_copy"), F.col("inputs")
    is_wanted, too_many = ~is_copy & ~F.col("is_later"), is_copy & (F.col("number") > inputs)
    found = {
        "source_rows": is_wanted,
        "target_rows": is_copy,
        "missing": is_wanted & (F.col("number") > F.col("copies")),
        "duplicated": too_many & (inputs > 0),
        "extra": too_many & (inputs == 0),
        "unmatched": is_wanted & F.col("is_nothing"),
    }
    return numbered.select(*IDENTITY, *(F.when(is_so, 1).alias(n) for n, is_so in found.items()))
