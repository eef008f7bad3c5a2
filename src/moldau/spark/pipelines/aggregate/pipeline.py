"""Responsible for an aggregate: what it is told, its plan, and what is done with each batch.

In a batch Spark's own aggregation runs over the rows that are on time. Its output is kept, written
once, and then the late and the bad rows of the same offsets are written once, if there were any.
Only then does Spark hold the batch for done.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder, Format
from moldau.spark.decode.arrow_types import columns_of, from_spark
from moldau.spark.lake.open import check_place, open_table
from moldau.spark.lake.table import TABLES, LakeTable, Writing
from moldau.spark.pipelines import streaming
from moldau.spark.pipelines.aggregate import frames
from moldau.spark.pipelines.home import query_id
from moldau.spark.pipelines.rows import topic_rows, write_rows
from moldau.spark.pipelines.spark_errors import PipelineError, from_text
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Step
from moldau.spark.pipelines.streaming import Start, StreamSettings, one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

_DELAY: Final = re.compile(
    r"\s*(?:\d+\s+(?:millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_VIEW: Final = re.compile(r"[A-Za-z_]\w{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings(StreamSettings):
    """`check` says what is wrong with them."""

    kind: ClassVar[str] = "aggregate"
    table_option: ClassVar[str] = "--to-table"

    sql: str
    view: str = "events"
    decode: str = Format.JSON
    event_time: str = "_timestamp"
    """A column of the view, or an expression of SQL over them; the record's own time."""
    watermark: str = "10 minutes"
    """For so long after the latest event time rows are waited for."""
    to_topic: str | None = None
    key: str | None = None
    """An expression over the columns of the result."""
    to_table: str | None = None
    late_topic: str | None = None

    @property
    def late(self) -> str:
        return self.late_topic or f"{self.topics[0]}.late"

    @property
    def written_topics(self) -> list[str]:
        return [*([self.to_topic] if self.to_topic else ()), self.late, self.dead]

    def asked(self) -> dict[str, Any]:
        return {
            **StreamSettings.asked(self),
            "--sql": self.sql,
            "--view": self.view,
            "--event-time": self.event_time,
            "--to": self.to_topic,
        }

    def wrongs(self) -> Iterator[tuple[bool, str, str]]:
        yield from StreamSettings.wrongs(self)
        yield one_of("--mode", self.mode, ("append", "update"))
        yield one_of("--format", self.table_format, TABLES)
        yield not self.sql.strip(), "there is no SQL", "--sql TEXT, or --sql-file FILE"
        is_name = _VIEW.fullmatch(self.view) is not None
        yield not is_name, f"{self.view!r} is no name of a view", "see --view"
        is_time = _DELAY.fullmatch(self.watermark) is not None
        said = f"--watermark is a time such as '1 hour 30 seconds', not {self.watermark!r}"
        yield not is_time, said, ""
        is_table = self.to_table is not None
        is_both = is_table == (self.to_topic is not None)
        yield is_both, "results go to a topic or to a table: one of --to and --to-table", ""
        yield bool(self.storage) and not is_table, "--storage is for --to-table", ""
        said = "--key is for results in a topic: rows of a table have none"
        yield is_table and self.key is not None, said, "leave it out, or see --to"
        said = "--mode update writes a result whenever it changes, and a table is only added to"
        yield is_table and self.mode == "update", said, "--mode append, or results to a topic: --to"
        hint = "see --to, --late-topic and --dead-letter-topic"
        for name in set(self.topics) & set(self.written_topics):
            yield True, f"topic {name} is read and would be written to, which never ends", hint
        said = f"topic {self.to_topic} would hold results and rows that are none"
        yield self.to_topic in (self.late, self.dead), said, hint


def plan_aggregate(settings: AggregateSettings) -> Plan:
    """What it would read and write, without Spark. Asks brokers; changes nothing."""
    settings.check()
    known = streaming.recall(settings, opened(settings))
    schema = None if known is None else known.schema
    shape = "JSON with a schema inferred from a sample"
    if schema is not None or not settings.is_inferred:
        decoder = streaming.decoder_of(settings, schema)
        shape = "values as they are" if decoder.struct is None else decoder.ddl
    begin = "begins" if known is None else "goes on where it was"
    output = settings.to_topic or f"{settings.table_format} table {settings.to_table}"
    rows = sum(streaming.waiting(settings, known).values())
    steps = [
        f"decodes {settings.decode}: {shape}; bad rows to {settings.dead}",
        f"event time {settings.event_time}, waited for {settings.watermark}; later rows to "
        f"{settings.late}",
        f"SQL over {settings.view}, {settings.mode}, to {output}",
    ]
    topics = settings.written_topics
    missing = streaming.missing_topics(settings, topics)
    return Plan(
        reads=settings.topics,
        writes=(*topics, settings.to_table) if settings.to_table else tuple(topics),
        steps=(
            Step(what=f"{begin}, reads {', '.join(settings.topics)}", rows=rows),
            *(Step(what=what) for what in steps),
        ),
        warnings=tuple(f"topic {topic} would be created" for topic in missing),
    )


def run_aggregate(settings: AggregateSettings, context: PipelineContext) -> Outcome:
    """Until all is read that is there, or until told to stop."""
    settings.check()
    tables = opened(settings)
    known = streaming.recall(settings, tables)
    start = streaming.settled_start(settings, known)
    schema = None if known is None else known.schema
    if schema is None and settings.is_inferred:
        # Once: another sample may say something else, and the state is of this one.
        values = streaming.sampled(settings)
        schema = decode.spark_json(decode.infer_json(values, framing=settings.framing))
    _ = context.spark  # Whose parser reads a schema as DDL.
    decoder = streaming.decoder_of(settings, schema)
    streaming.missing_topics(settings, settings.written_topics, create=True)
    streaming.remember(settings, tables, start, schema)
    aggregate = _Aggregate(settings, context, decoder, next(iter(tables.values()), None))
    streaming.run_query(lambda: aggregate.begin(start), context)
    return aggregate.outcome()


def opened(settings: AggregateSettings) -> dict[str, LakeTable]:
    """The table of results by its location, if there is one."""
    if settings.to_table is None:
        return {}
    table = open_table(
        settings.to_table, settings.table_format, storage=settings.storage, partition_columns=()
    )
    return {table.location: table}


def table_schema(result: "DataFrame") -> Any:
    """The pyarrow.Schema of a table for results."""
    import pyarrow as pa

    try:
        # Moments in UTC, and every column may be null, whatever Spark knows about this query.
        struct = columns_of(from_spark(result.schema))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"what --sql gives cannot be kept in a table: {error}", hint="CAST it in the SQL"
        ) from None
    return pa.schema(list(struct))


@dataclass
class _Aggregate:
    """One run."""

    settings: AggregateSettings
    context: PipelineContext
    decoder: Decoder
    table: LakeTable | None
    schema: Any = None
    """Of the table."""
    seen: Any = None
    """What tasks say of the batch at hand."""
    rows: int = 0
    results: int = 0
    late: int = 0
    bad: int = 0

    def begin(self, start: Start) -> "StreamingQuery":
        """Make the query. InvalidArgumentError says which option is wrong."""
        from pyspark.errors import AnalysisException

        settings, spark = self.settings, self.context.spark
        records = streaming.stream_of(spark, settings, start, "moldau")
        found, time = frames.timed(frames.flattened(records, self.decoder), settings)
        counting: Any = frames.Counting()
        seen = self.seen = spark.sparkContext.accumulator({}, counting)
        place = settings.checkpoint.location
        rows = frames.on_time(found, time, place, lambda counts: seen.add(counts))
        view = rows.withWatermark(time, settings.watermark)
        result = frames.queried(spark, view, settings)
        if self.table is not None:
            self.schema = table_schema(result)
            check_place(self.table)
            self.table.ensure(self.schema)
        else:
            # So that a wrong key is told now, and not in the first batch.
            frames.messages(result, settings)
        try:
            return streaming.start_query(result, settings, settings.mode, self._on_batch)
        except AnalysisException as error:
            raise InvalidArgumentError(
                f"--sql cannot be run as a stream with --mode {settings.mode}: "
                f"{from_text(str(error))}",
                hint=f"group by window({time}, '1 minute'), or use --mode update",
            ) from None

    def _on_batch(self, frame: "DataFrame", batch: int) -> None:
        """Called again with the same batch after a crash; then all of it has the same effect."""
        query = query_id(self.settings.checkpoint)
        # Computed once and to its end, even if its results were written before: the state of the
        # batch and its watermark are made by that.
        kept = frame.persist()
        side = None
        try:
            rows = kept.count()
            # Before anything is written: see _side.
            side, late, bad = self._side(batch)
            if rows:
                self._write_results(kept, query, batch)
            self.results += rows
            if side is not None and late + bad:
                self._write_side(side, query, batch)
                self.late += late
                self.bad += bad
                log.info("batch %d: %d late rows, %d bad ones", batch, late, bad)
                self.context.dead_letters(bad)
        finally:
            kept.unpersist()
            if side is not None:
                side.unpersist()

    def _write_results(self, frame: "DataFrame", query: str, batch: int) -> None:
        settings, table = self.settings, self.table
        if table is None:
            rows = frames.messages(frame, settings)
            streaming.write_once(rows, settings, f"aggregate-{query}-results", batch)
            return
        writing = Writing(query, batch, settings.marks(table.location))
        before = table.last_batch(query)
        if before is None or before < batch:
            table.append(write_rows(frame, table, self.schema, settings.name), writing)

    def _write_side(self, side: "DataFrame", query: str, batch: int) -> None:
        streaming.write_once(side, self.settings, f"aggregate-{query}-side", batch)

    def _side(self, batch: int) -> tuple["DataFrame | None", int, int]:
        """The late and the bad rows of a batch, and how many there are; None if there are none.

        Raises PipelineError if a schema that came to the registry since tasks looked made good
        rows of bad ones: these would be neither among the results nor among the bad ones.
        """
        settings = self.settings
        told = [counts for (number, _), counts in self.seen.value.items() if number == batch]
        self.seen.value = {}
        counted: list[int] = [sum(each) for each in zip(*told, strict=True)]
        self.rows += sum(counted)
        ranges = streaming.ranges_of(settings.checkpoint, batch)
        # If nothing at all was counted nobody has looked: then look.
        if not ranges or (any(counted) and sum(counted) == counted[frames.ON_TIME]):
            return None, 0, 0
        watermark = streaming.read_batch(settings.checkpoint, batch).watermark_ms
        options = streaming.of_tables(settings.source_options())
        records = topic_rows(self.context.spark, options, ranges)
        side = frames.side_rows(records, self.decoder, settings, watermark).persist()
        found = {row["topic"]: row["count"] for row in side.groupBy("topic").count().collect()}
        late, bad = found.get(settings.late, 0), found.get(settings.dead, 0)
        if self.decoder.registry is not None and counted and bad < counted[frames.BAD]:
            raise PipelineError(
                f"{counted[frames.BAD]} rows could not be decoded, and {bad} when they were looked "
                "at again: a schema has come to the registry meanwhile",
                hint="nothing was written: start it again, and the batch is done anew",
            )
        return side, late, bad

    def outcome(self) -> Outcome:
        rows, output = self.rows, self.settings.to_topic or self.settings.to_table
        return Outcome(
            summary=f"{self.results} results to {output} from {rows} rows; {self.late} late, "
            f"{self.bad} bad",
            rows=rows,
            dead_letters=self.bad,
            details={"results": self.results, "late": self.late, "bad": self.bad, "rows": rows},
        )
