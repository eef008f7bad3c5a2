"""Responsible for the audit of a table: which committed records are in it, and how often."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.model.ids import TopicPartition
from moldau.model.queue_headers import DEAD_OFFSET_HEADER, DEAD_PARTITION_HEADER, DEAD_TOPIC_HEADER
from moldau.spark.decode import ERROR_COLUMN, RAW_COLUMN, Decoder, apply, decoder
from moldau.spark.pipelines.audit import cut as cuts
from moldau.spark.pipelines.audit import report
from moldau.spark.pipelines.audit.settings import COMPARED, AuditSettings
from moldau.spark.pipelines.rows import IDENTITY, existing_table, newest, row_hash, table_rows
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ATTEMPTS_MAX: Final = 3
"""While the table is compacted, or retention removes the beginning of the log, under our eyes."""
_FORMS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "key": (("binary", "string"), "binary({})"),
    "value": (("binary", "string"), "binary({})"),
    "timestamp": (("timestamp",), "unix_micros(timestamp({}))"),
    "timestampType": (("int",), "int({})"),
    "headers": (
        ("list<element: struct", "list<item: struct"),
        # No headers, null and an empty list are the same.
        "transform(coalesce({}, array()), h -> struct(h.key, h.value, h.value IS NULL))",
    ),
}
"""With what the Arrow type of a column begins that holds it as topics do; and SQL that makes the
same of either side."""


def audit_table(settings: AuditSettings, context: PipelineContext) -> Outcome:
    from pyspark.errors import PySparkException

    left = ATTEMPTS_MAX
    while True:
        left -= 1
        audit = TableAudit(settings, context)
        try:
            found = audit.compared()
        except PySparkException:
            # Files of a snapshot go away when a table is compacted: its rows are in others now.
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
        # The order matters: see `cut`.
        self._cut = cuts.take_cut(settings)
        self._table, self._schema = existing_table(
            settings.table or "", settings.table_format, settings.storage
        )
        self._snapshot = self._table.snapshot()
        self._ends = {place: each.end for place, each in self._now().items()}
        """Where the topics ended after the table was looked at: no row can come from behind."""
        wanted = [name for name in COMPARED if name not in settings.ignored]
        found = {name: column_of(name, self._schema) for name in wanted}
        self._columns = {name: column for name, column in found.items() if column is not None}
        self._not_compared = tuple(name for name in wanted if name not in self._columns)
        self._spark = context.spark
        self._decoder = _decoder(settings)

    def compared(self) -> report.Found:
        planned = cuts.offset_count(self._cut.places) + self._snapshot.rows
        self._context.report(Progress(rows_total=planned, note="comparing"))
        found = report.find(self._judged())
        self._context.report(Progress(rows=planned, rows_total=planned))
        return found

    def has_moved(self, found: report.Found) -> bool:
        """Whether rows may only seem to be extra, since the log starts or ends elsewhere by now.

        A leader that was new a moment ago may not have known yet how far all are.
        """
        suspects = [place for place in self._cut.places if found.get(place, {}).get("extra")]
        now = self._now() if suspects else {}
        return any(
            now[place].start > self._cut.places[place].start or now[place].end > self._ends[place]
            for place in suspects
        )

    def outcome(self, found: report.Found) -> Outcome:
        strange = dict.fromkeys(found.keys() - self._cut.places.keys(), cuts.Bounds(0, 0, 0))
        partitions = [
            report.partition_report(
                place,
                bounds,
                found.get(place, {}),
                extra_is_fine=place.topic in self._cut.compacted and place not in strange,
            )
            for place, bounds in sorted({**self._cut.places, **strange}.items())
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
        """Whether somebody has taken files out of the table since the audit began."""
        now = {file.path for file in self._table.snapshot().files}
        return any(file.path not in now for file in self._snapshot.files)

    def _now(self) -> dict[TopicPartition, cuts.Bounds]:
        now = cuts.whole_topics(self._settings, self._settings.topics)
        return {place: now.get(place, bounds) for place, bounds in self._cut.places.items()}

    def _judged(self) -> "DataFrame":
        """Both sides, in one full outer join. The topics have each place once."""
        from pyspark.sql import functions as F  # noqa: N812

        places = self._cut.places
        source, target = self._sides()
        there = target.groupBy(*IDENTITY).agg(
            F.count("*").alias("n"), F.min("hash").alias("low"), F.max("hash").alias("high")
        )
        limits = self._spark.createDataFrame(
            [(*place, each.start, each.end, self._ends[place]) for place, each in places.items()],
            "topic string, partition int, start bigint, end bigint, topic_end bigint",
        )
        both = source.withColumnRenamed("hash", "wanted").join(there, list(IDENTITY), "full_outer")
        both = both.join(F.broadcast(limits), ["topic", "partition"], "left")
        is_dead = F.lit(False)
        if self._settings.dead_letters is not None:
            dead = self._dead(self._settings.dead_letters).withColumn("dead", F.lit(True))
            both = both.join(dead, list(IDENTITY), "left")
            is_dead = F.col("dead").isNotNull()
        here, n = F.col("wanted").isNotNull(), F.coalesce("n", F.lit(0))
        # Of a partition that the topic does not have, neither is known.
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
        """What has to be in the table, and what is: places, and hashes of all that is compared."""
        from pyspark.sql import functions as F  # noqa: N812

        names = [*IDENTITY, *self._columns.values()]
        rows = table_rows(self._spark, self._table, self._schema, self._snapshot.files, names)
        target = hashed(rows, self._columns).where(F.col("topic").isin(list(self._settings.topics)))
        same = {name: name for name in self._columns}
        if self._table.partition_columns:
            return hashed(
                cuts.topic_rows(self._spark, self._settings, self._cut.places), same
            ), target
        # A table that keeps the newest row of each key. Keys with a record behind the cut are left
        # out: the table may have either of the two.
        rows = cuts.rows_and_later(self._spark, self._settings, self._cut.places, self._ends)
        rows = rows.where("key IS NOT NULL")
        later = rows.where("is_later").select("topic", "key").distinct()
        kept = newest(rows.where("NOT is_later"), ["key"]).where("value IS NOT NULL")
        replaced = rows.join(later, ["topic", "key"], "left_semi").select(*IDENTITY)
        return (
            hashed(kept.join(later, ["topic", "key"], "left_anti"), same),
            target.join(replaced, list(IDENTITY), "left_anti"),
        )

    def _dead(self, topic: str) -> "DataFrame":
        """Where dead letters come from; those that say it."""
        from pyspark.sql import functions as F  # noqa: N812

        def last(name: str) -> "Column":
            # The last one of a name is that of whoever wrote the letter.
            named = F.filter(F.col("headers"), lambda header: header["key"] == name)
            return F.try_element_at(named, F.lit(-1))["value"].cast("string")

        letters = cuts.topic_rows(
            self._spark, self._settings, cuts.whole_topics(self._settings, (topic,))
        )
        told = letters.select(
            last(DEAD_TOPIC_HEADER).alias("topic"),
            last(DEAD_PARTITION_HEADER).try_cast("int").alias("partition"),
            last(DEAD_OFFSET_HEADER).try_cast("bigint").alias("offset"),
        )
        return told.dropna().distinct()

    def _undecodable(self) -> dict[str, Any] | None:
        """Reads the values of the topics. A null value is no error."""
        from pyspark.sql import functions as F  # noqa: N812

        if self._decoder is None:
            return None
        rows = cuts.topic_rows(self._spark, self._settings, self._cut.places)
        error = F.col(ERROR_COLUMN)
        said = F.format_string("%s-%d offset %d: %s", *IDENTITY, error)
        row = (
            apply(rows.select(*IDENTITY, "value"), self._decoder)
            .agg(F.count("*"), F.count(error), F.min(F.when(error.isNotNull(), said)))
            .collect()[0]
        )
        name, most = self._settings.value_format or "", self._settings.undecodable_max
        return report.undecodable(name, row[0], row[1], share_max=most, example=row[2] or "")

    def _notes(self) -> list[str]:
        notes = [
            f"{topic} is compacted: rows that only the table still has are no mistake"
            for topic in sorted(self._cut.compacted)
        ]
        if not self._table.partition_columns:
            notes.append("the table keeps the newest row of each key: so it was compared")
        idle = [str(p) for p, b in sorted(self._cut.places.items()) if b.end <= b.start < b.latest]
        if idle:
            notes.append(f"nothing is compared of {', '.join(idle)}: it is behind the cut")
        return notes


def column_of(name: str, schema: Any) -> str | None:
    """The column of a table that holds what is compared of a record as the topic does."""
    column = RAW_COLUMN if name == "value" and RAW_COLUMN in schema.names else name
    kind = str(schema.field(column).type) if column in schema.names else ""
    return column if kind.startswith(_FORMS[name][0]) else None


def hashed(rows: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
    """The place of each row, and a number for its content, whatever types a table made of it."""
    place = ("topic", "int(partition) AS partition", "bigint(offset) AS offset")
    forms = [f"{_FORMS[name][1].format(column)} AS {name}" for name, column in columns.items()]
    plain = rows.selectExpr(*place, *forms)
    return plain.select(*IDENTITY, row_hash(plain, columns).alias("hash"))


def _decoder(settings: AuditSettings) -> Decoder | None:
    """Raises InvalidArgumentError for a schema that is none."""
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
