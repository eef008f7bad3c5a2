"""The audit of a table: compares its rows with the committed records of the topics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.model.ids import TopicPartition
from moldau.model.queue_headers import DEAD_OFFSET_HEADER, DEAD_PARTITION_HEADER, DEAD_TOPIC_HEADER
from moldau.spark.decode import ERROR_COLUMN, RAW_COLUMN, Decoder, apply, decoder
from moldau.spark.pipelines.audit import cut as cuts
from moldau.spark.pipelines.audit import report
from moldau.spark.pipelines.rows import IDENTITY, existing_table, newest, row_hash, table_rows
from moldau.spark.pipelines.settings.audit import COMPARED, AuditSettings
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ATTEMPTS_MAX: Final = 3
"""For a table that is compacted, or a log that retention truncates, during the audit."""
_FORMS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "key": (("binary", "string"), "binary({})"),
    "value": (("binary", "string"), "binary({})"),
    "timestamp": (("timestamp",), "unix_micros(timestamp({}))"),
    "timestampType": (("int",), "int({})"),
    "headers": (
        ("list<element: struct", "list<item: struct"),
        # A null and an empty list both mean: no headers.
        "transform(coalesce({}, array()), h -> struct(h.key, h.value, h.value IS NULL))",
    ),
}
"""Prefixes of Arrow types that store a column as topics do; SQL that normalises both sides."""


def audit_table(settings: AuditSettings, context: PipelineContext) -> Outcome:
    from pyspark.errors import PySparkException

    left = ATTEMPTS_MAX
    while True:
        left -= 1
        audit = TableAudit(settings, context)
        try:
            found = audit.compared()
        except PySparkException:
            # Files of the snapshot may be deleted when the table is compacted.
            if not left or not audit.was_replaced():
                raise
        else:
            if not left or not audit.has_moved(found):
                return audit.outcome(found)


class TableAudit:
    """One audit of one snapshot."""

    def __init__(self, settings: AuditSettings, context: PipelineContext) -> None:
        self._settings = settings
        self._context = context
        # The order matters: see cut.py.
        self._cut = cuts.take_cut(settings)
        self._table, self._schema = existing_table(
            settings.table or "", settings.table_format, settings.storage
        )
        self._snapshot = self._table.snapshot()
        self._ends = {tp: each.end for tp, each in self._now().items()}
        """The ends of the topics after the snapshot: no row of it can be beyond them."""
        wanted = [name for name in COMPARED if name not in settings.ignored]
        found = {name: column_of(name, self._schema) for name in wanted}
        self._columns = {name: column for name, column in found.items() if column is not None}
        self._not_compared = tuple(name for name in wanted if name not in self._columns)
        self._spark = context.spark
        self._decoder = _decoder(settings)

    def compared(self) -> report.Found:
        planned = cuts.offset_count(self._cut.partitions) + self._snapshot.rows
        self._context.report(Progress(rows_total=planned, note="comparing"))
        found = report.find(self._joined())
        self._context.report(Progress(rows=planned, rows_total=planned))
        return found

    def has_moved(self, found: report.Found) -> bool:
        """Whether extra rows may be due to a start or end of the log that has moved since.

        A new leader may at first have reported a lower high watermark.
        """
        cut = self._cut.partitions
        suspects = [tp for tp in cut if found.get(tp, {}).get("extra")]
        now = self._now() if suspects else {}
        return any(now[tp].start > cut[tp].start or now[tp].end > self._ends[tp] for tp in suspects)

    def outcome(self, found: report.Found) -> Outcome:
        unknown = dict.fromkeys(found.keys() - self._cut.partitions.keys(), cuts.Bounds(0, 0, 0))
        partitions = [
            report.partition_report(
                tp,
                bounds,
                found.get(tp, {}),
                extra_is_fine=tp.topic in self._cut.compacted and tp not in unknown,
            )
            for tp, bounds in sorted({**self._cut.partitions, **unknown}.items())
        ]
        return report.outcome(
            self._settings,
            self._cut,
            partitions,
            against=self._table.location,
            compared=("offset", *self._columns),
            not_compared=self._not_compared,
            undecodable=self._undecodable(),
            version=self._snapshot.version,
            notes=self._notes(),
        )

    def was_replaced(self) -> bool:
        """Whether files of the snapshot were removed from the table since."""
        now = {file.path for file in self._table.snapshot().files}
        return any(file.path not in now for file in self._snapshot.files)

    def _now(self) -> dict[TopicPartition, cuts.Bounds]:
        now = cuts.whole_topics(self._settings, self._settings.topics)
        return {tp: now.get(tp, bounds) for tp, bounds in self._cut.partitions.items()}

    def _joined(self) -> "DataFrame":
        """A full outer join of both sides. The topics have each offset once."""
        from pyspark.sql import functions as F  # noqa: N812

        source, target = self._sides()
        rows = target.groupBy(*IDENTITY).agg(
            F.count("*").alias("n"), F.min("hash").alias("low"), F.max("hash").alias("high")
        )
        cut = self._cut.partitions
        limits = self._spark.createDataFrame(
            [(*tp, each.start, each.end, self._ends[tp]) for tp, each in cut.items()],
            "topic string, partition int, start bigint, end bigint, topic_end bigint",
        )
        both = source.withColumnRenamed("hash", "wanted").join(rows, list(IDENTITY), "full_outer")
        both = both.join(F.broadcast(limits), ["topic", "partition"], "left")
        is_dead = F.lit(False)
        if self._settings.dead_letters is not None:
            dead = self._dead(self._settings.dead_letters).withColumn("dead", F.lit(True))
            both = both.join(dead, list(IDENTITY), "left")
            is_dead = F.col("dead").isNotNull()
        here, n = F.col("wanted").isNotNull(), F.coalesce("n", F.lit(0))
        # Both are null for a partition that the topic does not have.
        expired = F.coalesce(F.col("offset") < F.col("start"), F.lit(False))
        later = (F.col("offset") >= F.col("end")) & (F.col("offset") < F.col("topic_end"))
        later = F.coalesce(later, F.lit(False))
        altered = (F.col("low") != F.col("wanted")) | (F.col("high") != F.col("wanted"))
        found = {
            "source_rows": F.when(here, 1),
            "target_rows": F.when(~expired & ~later, n),
            "missing": F.when(here & (n == 0) & ~is_dead, 1),
            "duplicated": F.when((n > 1) & ~later, n - 1),
            "extra": F.when(~here & ~expired & ~later, n),
            "altered": F.when(here & (n > 0) & altered, 1),
            "dead": F.when(here & (n == 0) & is_dead, 1),
            "expired": F.when(expired, n),
            "after_cut": F.when(later, n),
        }
        return both.select(*IDENTITY, *(count.alias(name) for name, count in found.items()))

    def _sides(self) -> tuple["DataFrame", "DataFrame"]:
        """The required and the actual rows: offsets, and hashes of the compared columns."""
        from pyspark.sql import functions as F  # noqa: N812

        names = [*IDENTITY, *self._columns.values()]
        rows = table_rows(self._spark, self._table, self._schema, self._snapshot.files, names)
        target = hashed(rows, self._columns).where(F.col("topic").isin(list(self._settings.topics)))
        same = {name: name for name in self._columns}
        if self._table.partition_columns:
            source = cuts.topic_rows(self._spark, self._settings, self._cut.partitions)
            return hashed(source, same), target
        # A table with upserts. Keys with a record after the cut are ignored: the table may have
        # either version.
        rows = cuts.rows_and_later(self._spark, self._settings, self._cut.partitions, self._ends)
        rows = rows.where("key IS NOT NULL")
        later = rows.where("is_later").select("topic", "key").distinct()
        kept = newest(rows.where("NOT is_later"), ["key"]).where("value IS NOT NULL")
        replaced = rows.join(later, ["topic", "key"], "left_semi").select(*IDENTITY)
        return (
            hashed(kept.join(later, ["topic", "key"], "left_anti"), same),
            target.join(replaced, list(IDENTITY), "left_anti"),
        )

    def _dead(self, topic: str) -> "DataFrame":
        """The origins of dead letters, from their headers."""
        from pyspark.sql import functions as F  # noqa: N812

        def last(name: str) -> "Column":
            # The last header of a name is that of the last writer.
            named = F.filter(F.col("headers"), lambda header: header["key"] == name)
            return F.try_element_at(named, F.lit(-1))["value"].cast("string")

        letters = cuts.topic_rows(
            self._spark, self._settings, cuts.whole_topics(self._settings, (topic,))
        )
        origins = letters.select(
            last(DEAD_TOPIC_HEADER).alias("topic"),
            last(DEAD_PARTITION_HEADER).try_cast("int").alias("partition"),
            last(DEAD_OFFSET_HEADER).try_cast("bigint").alias("offset"),
        )
        return origins.dropna().distinct()

    def _undecodable(self) -> dict[str, Any] | None:
        """Decodes the values of the topics. A null value is not an error."""
        from pyspark.sql import functions as F  # noqa: N812

        if self._decoder is None:
            return None
        rows = cuts.topic_rows(self._spark, self._settings, self._cut.partitions)
        error = F.col(ERROR_COLUMN)
        example = F.format_string("%s-%d offset %d: %s", *IDENTITY, error)
        row = (
            apply(rows.select(*IDENTITY, "value"), self._decoder)
            .agg(F.count("*"), F.count(error), F.min(F.when(error.isNotNull(), example)))
            .collect()[0]
        )
        name, most = self._settings.value_format or "", self._settings.undecodable_max
        return report.undecodable(name, row[0], row[1], share_max=most, example=row[2] or "")

    def _notes(self) -> list[str]:
        notes = [
            f"{topic} is compacted: rows that only the table still has are not errors"
            for topic in sorted(self._cut.compacted)
        ]
        if not self._table.partition_columns:
            notes.append(
                "the table holds the newest row of each key: only the newest records were compared"
            )
        partitions = sorted(self._cut.partitions.items())
        idle = [str(tp) for tp, each in partitions if each.end <= each.start < each.latest]
        if idle:
            notes.append(f"no record of {', '.join(idle)} was compared: all are after the cut")
        return notes


def column_of(name: str, schema: Any) -> str | None:
    """The table column that stores a column of records as the topic does; None if there is none."""
    column = RAW_COLUMN if name == "value" and RAW_COLUMN in schema.names else name
    kind = str(schema.field(column).type) if column in schema.names else ""
    return column if kind.startswith(_FORMS[name][0]) else None


def hashed(rows: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
    """Topic, partition and offset of each row, and a hash of its normalised columns."""
    identity = ("topic", "int(partition) AS partition", "bigint(offset) AS offset")
    forms = [f"{_FORMS[name][1].format(column)} AS {name}" for name, column in columns.items()]
    plain = rows.selectExpr(*identity, *forms)
    return plain.select(*IDENTITY, row_hash(plain, columns).alias("hash"))


def _decoder(settings: AuditSettings) -> Decoder | None:
    """Raises InvalidArgumentError for an invalid schema."""
    if settings.value_format is None:
        return None
    return decoder(
        settings.value_format,
        settings.value_schema or "",
        message=settings.value_message or "",
        framing=settings.framing,
        registry=settings.registry,
        registry_options=settings.registry_options,
    )
