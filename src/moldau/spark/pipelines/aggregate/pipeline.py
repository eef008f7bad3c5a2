"""The aggregate pipeline: its plan, its query, and the processing of each batch.

In a batch, Spark's own aggregation runs over the rows that are on time. Its output is written
exactly once, then the late and bad rows of the same offsets. Only then Spark commits the batch.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder
from moldau.spark.decode.arrow_types import columns_of, from_spark
from moldau.spark.lake.model import Writing
from moldau.spark.lake.open import check_location, open_table
from moldau.spark.lake.table import LakeTable
from moldau.spark.pipelines import streaming
from moldau.spark.pipelines.aggregate import transforms
from moldau.spark.pipelines.home import query_id
from moldau.spark.pipelines.rows import topic_rows, write_rows
from moldau.spark.pipelines.settings.aggregate import AggregateSettings
from moldau.spark.pipelines.spark_errors import PipelineError, from_text
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Step
from moldau.spark.pipelines.streaming import Start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)


def plan_aggregate(settings: AggregateSettings) -> Plan:
    """What it would read and write. Sends requests to brokers, changes nothing, needs no Spark."""
    settings.check()
    known = streaming.load_state(settings, opened(settings))
    schema = None if known is None else known.schema
    shape = "JSON with a schema inferred from a sample"
    if schema is not None or not settings.is_inferred:
        decoder = streaming.decoder_of(settings, schema)
        shape = "raw values" if decoder.struct is None else decoder.ddl
    begin = "start" if known is None else "continue from the checkpoint"
    output = settings.to_topic or f"{settings.table_format} table {settings.to_table}"
    rows = sum(streaming.count_unread(settings, known).values())
    steps = [
        f"decode {settings.decode}: {shape}; bad rows to {settings.dead}",
        f"event time {settings.event_time}, watermark {settings.watermark}; late rows to "
        f"{settings.late}",
        f"SQL over {settings.view}, {settings.mode}, to {output}",
    ]
    topics = settings.written_topics
    missing = streaming.missing_topics(settings, topics)
    return Plan(
        reads=settings.topics,
        writes=(*topics, settings.to_table) if settings.to_table else tuple(topics),
        steps=(
            Step(what=f"{begin}, read {', '.join(settings.topics)}", rows=rows),
            *(Step(what=what) for what in steps),
        ),
        warnings=tuple(f"topic {topic} would be created" for topic in missing),
    )


def run_aggregate(settings: AggregateSettings, context: PipelineContext) -> Outcome:
    """Runs until all available records are read, or until it is stopped."""
    settings.check()
    tables = opened(settings)
    known = streaming.load_state(settings, tables)
    start = streaming.resolve_start(settings, known)
    schema = None if known is None else known.schema
    if schema is None and settings.is_inferred:
        # Only once: another sample may give another schema, and Spark's state depends on it.
        values = streaming.sample_values(settings)
        schema = decode.spark_json(decode.infer_json(values, framing=settings.framing))
    _ = context.spark  # Its parser reads a schema in DDL.
    decoder = streaming.decoder_of(settings, schema)
    streaming.missing_topics(settings, settings.written_topics, create=True)
    streaming.save_state(settings, tables, start, schema)
    aggregate = _Aggregate(settings, context, decoder, next(iter(tables.values()), None))
    streaming.run_query(lambda: aggregate.begin(start), context)
    return aggregate.outcome()


def opened(settings: AggregateSettings) -> dict[str, LakeTable]:
    """The table for results by its location, if there is one."""
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
        # Timestamps in UTC, and all columns nullable, whatever the types of this query.
        struct = columns_of(from_spark(result.schema))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"a table cannot store the result of --sql: {error}", hint="CAST it in the SQL"
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
    """The accumulator with the counts of tasks."""
    rows: int = 0
    results: int = 0
    late: int = 0
    bad: int = 0

    def begin(self, start: Start) -> "StreamingQuery":
        """Starts the query. Raises InvalidArgumentError, which names the option to change."""
        from pyspark.errors import AnalysisException

        settings, spark = self.settings, self.context.spark
        records = streaming.read_stream(spark, settings, start, "moldau")
        found, time = transforms.timed(transforms.flattened(records, self.decoder), settings)
        counting: Any = transforms.Counting()
        seen = self.seen = spark.sparkContext.accumulator({}, counting)
        checkpoint = settings.checkpoint.location
        rows = transforms.on_time(found, time, checkpoint, lambda counts: seen.add(counts))
        view = rows.withWatermark(time, settings.watermark)
        result = transforms.queried(spark, view, settings)
        if self.table is not None:
            self.schema = table_schema(result)
            check_location(self.table)
            self.table.ensure(self.schema)
        else:
            # Reports an invalid --key now, not in the first batch.
            transforms.messages(result, settings)
        try:
            return streaming.start_query(result, settings, settings.mode, self._on_batch)
        except AnalysisException as error:
            raise InvalidArgumentError(
                f"--sql cannot run as a stream with --mode {settings.mode}: "
                f"{from_text(str(error))}",
                hint=f"group by window({time}, '1 minute'), or use --mode update",
            ) from None

    def _on_batch(self, frame: "DataFrame", batch: int) -> None:
        """Idempotent: called again with the same batch after a crash."""
        query = query_id(self.settings.checkpoint)
        # Computed completely, even if the results were written before: that also updates Spark's
        # state and watermark.
        kept = frame.persist()
        side = None
        try:
            rows = kept.count()
            # Before anything is written, since it may raise.
            side, late, bad = self._side(batch)
            if rows:
                self._write_results(kept, query, batch)
            self.results += rows
            if side is not None and late + bad:
                self._write_side(side, query, batch)
                self.late += late
                self.bad += bad
                log.info("batch %d has %d late rows and %d bad rows", batch, late, bad)
                self.context.dead_letters(bad)
        finally:
            kept.unpersist()
            if side is not None:
                side.unpersist()

    def _write_results(self, frame: "DataFrame", query: str, batch: int) -> None:
        settings, table = self.settings, self.table
        if table is None:
            rows = transforms.messages(frame, settings)
            streaming.write_once(rows, settings, f"aggregate-{query}-results", batch)
            return
        writing = Writing(query, batch, settings.marks(table.location))
        before = table.last_batch(query)
        if before is None or before < batch:
            table.append(write_rows(frame, table, self.schema, settings.name), writing)

    def _write_side(self, side: "DataFrame", query: str, batch: int) -> None:
        streaming.write_once(side, self.settings, f"aggregate-{query}-side", batch)

    def _side(self, batch: int) -> tuple["DataFrame | None", int, int]:
        """The late and bad rows of a batch and their counts; None if there are none.

        Raises PipelineError if a schema was registered in the meantime that makes bad rows good:
        they would be neither in the results nor among the bad rows.
        """
        settings = self.settings
        counts = [counts for (number, _), counts in self.seen.value.items() if number == batch]
        self.seen.value = {}
        counted: list[int] = [sum(each) for each in zip(*counts, strict=True)]
        self.rows += sum(counted)
        ranges = streaming.ranges_of(settings.checkpoint, batch)
        # Without any counts the tasks did not run, so the rows must be read.
        if not ranges or (any(counted) and sum(counted) == counted[transforms.ON_TIME]):
            return None, 0, 0
        watermark = streaming.read_batch(settings.checkpoint, batch).watermark_ms
        options = streaming.batch_options(settings.source_options())
        records = topic_rows(self.context.spark, options, ranges)
        side = transforms.side_rows(records, self.decoder, settings, watermark).persist()
        found = {row["topic"]: row["count"] for row in side.groupBy("topic").count().collect()}
        late, bad = found.get(settings.late, 0), found.get(settings.dead, 0)
        if self.decoder.registry is not None and counted and bad < counted[transforms.BAD]:
            raise PipelineError(
                f"{counted[transforms.BAD]} rows could not be decoded, and {bad} when read again: "
                "a schema was registered in the meantime",
                hint="nothing was written: run the pipeline again, which repeats the batch",
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
