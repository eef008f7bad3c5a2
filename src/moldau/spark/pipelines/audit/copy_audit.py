"""The audit of a copy: each record of the topics must be exactly once in another topic.

The order of the offset lookups makes it correct while producers and copies run: first the ends of
the inputs that must have been copied, then the end of the copy, then the ends of the inputs again.
Copies of inputs from in between are allowed, but not required.

Records are equal if all terms of `--match` are. Of n equal inputs, n copies are correct: equal
records of each side are numbered by partition and offset.
"""

from typing import TYPE_CHECKING

from moldau.spark.pipelines.audit import cut as cuts
from moldau.spark.pipelines.audit.report import find, outcome, partition_report
from moldau.spark.pipelines.rows import IDENTITY, row_hash
from moldau.spark.pipelines.settings.audit import AuditSettings, expression
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
    planned = cuts.offset_count(cut.partitions) + cuts.offset_count(outputs)
    context.report(Progress(rows_total=planned, note="comparing"))
    ends = {tp: each.end for tp, each in now.items()}
    inputs = cuts.rows_and_later(context.spark, settings, cut.partitions, ends)
    copies = cuts.topic_rows(context.spark, settings, outputs)
    wanted = _identified(inputs, terms).withColumn("is_copy", F.lit(False))
    copied = _identified(copies.withColumn("is_later", F.lit(False)), copy_terms)
    found = find(_compared(wanted.unionByName(copied.withColumn("is_copy", F.lit(True)))))
    context.report(Progress(rows=planned, rows_total=planned))
    is_truncated = any(bounds.start > 0 for bounds in cut.partitions.values())
    partitions = [
        partition_report(
            tp, bounds, found.get(tp, {}), extra_is_fine=is_truncated, **{not_read: None}
        )
        for side, not_read in ((cut.partitions, "target_rows"), (outputs, "source_rows"))
        for tp, bounds in sorted(side.items())
    ]
    notes = []
    if alike := sum(partition["unmatched"] for partition in partitions):
        notes.append(
            f"{alike} records of the topics are only counted, since all terms of --match "
            f"({', '.join(terms)}) are null in them"
        )
    if is_truncated:
        notes.append(
            "the topics do not start at offset 0: copies of records that retention deleted look "
            "like extra ones, so extra records are not counted as errors"
        )
    pairs = zip(terms, copy_terms, strict=True)
    compared = [one if one == other else f"{one} = {other}" for one, other in pairs]
    return outcome(settings, cut, partitions, against=copy, compared=compared, notes=notes)


def _identified(rows: "DataFrame", terms: tuple[str, ...]) -> "DataFrame":
    """The rows of a side: partition, offset, and a hash of the terms."""
    from pyspark.sql import functions as F  # noqa: N812

    matched = [f"match{number}" for number in range(len(terms))]
    columns = [f"({expression(term)}) AS {name}" for term, name in zip(terms, matched, strict=True)]
    # Spark reports invalid SQL of the user here.
    chosen = rows.selectExpr(*IDENTITY, "is_later", *columns)
    for name in matched:
        # Text and bytes with the same content are equal.
        if chosen.schema[name].dataType.typeName() != "binary":
            chosen = chosen.withColumn(name, F.col(name).cast("string").cast("binary"))
    return chosen.select(
        *IDENTITY,
        "is_later",
        row_hash(chosen, matched).alias("identity"),
        F.coalesce(*matched).isNull().alias("is_nothing"),
    )


def _compared(rows: "DataFrame") -> "DataFrame":
    """Of n equal inputs the first n copies are correct, and any others are duplicates."""
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
