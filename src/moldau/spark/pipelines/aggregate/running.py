"""Owns the course of an aggregate: one query of Spark's, and what is done with each of its batches.

In a batch Spark's own aggregation runs over the rows that are on time. Its output is kept, written
once, and then the late and the bad rows of the same offsets are written once, if there were any.
Only then does Spark hold the batch for done.
"""

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark import decode
from moldau.spark.decode import Decoder
from moldau.spark.lake.table import WRITER, Writing
from moldau.spark.options import BOOTSTRAP
from moldau.spark.pipelines.aggregate import tables
from moldau.spark.pipelines.aggregate.batches import ranges_of, read_batch
from moldau.spark.pipelines.aggregate.frames import (
    BAD,
    LATE,
    ON_TIME,
    flattened,
    messages,
    on_time,
    queried,
    side_rows,
    timed,
)
from moldau.spark.pipelines.aggregate.planning import (
    create_missing,
    first_positions,
    latest_offsets,
    read_options,
)
from moldau.spark.pipelines.aggregate.remembered import Remembered, asked_of, recall, remember
from moldau.spark.pipelines.aggregate.settings import AggregateSettings, check, decoder_of
from moldau.spark.pipelines.failures import PipelineError, from_text
from moldau.spark.pipelines.home import Home, query_id
from moldau.spark.pipelines.spec import Context, Outcome
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import EARLIEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

_STREAM_ONLY: Final = frozenset(
    name.lower()
    for name in (
        "subscribe",
        "groupId",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    )
)


def run_aggregate(settings: AggregateSettings, context: Context) -> Outcome:
    """Until all is read that is there, or until told to stop."""
    check(settings)
    remembered = recall(settings)
    if remembered is None:
        tables.check_new(settings)
        # Where it begins is settled now, and not asked for again.
        start, schema = first_positions(settings), None
    else:
        start, schema = Positions.from_json(remembered.start), remembered.schema
    _ = context.spark  # Whose parser reads a schema as DDL.
    decoder = decoder_of(settings, schema)
    if decoder is None:
        schema = inferred(settings, context)
        decoder = decoder_of(settings, schema)
    if decoder is None:
        raise InvalidArgumentError("values have no schema", hint="see --schema")
    create_missing(settings)
    remember(settings, Remembered(start=start.to_json(), schema=schema, asked=asked_of(settings)))
    Home(settings.home).use_start()
    aggregate = _Aggregate(settings, context, decoder, start)
    context.watch(aggregate.start())
    return aggregate.outcome()


def inferred(settings: AggregateSettings, context: Context) -> str:
    """The schema of JSON, from some rows of what is read first."""
    options = {**read_options(settings), "startingOffsets": "earliest"}
    for name in ("groupId", "maxOffsetsPerTrigger"):
        options.pop(name, None)
    sample = context.spark.read.format("moldau").options(**options).load()
    try:
        return decode.spark_json(decode.infer(sample, framing=settings.framing))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), hint="give it: --schema") from None


class _Aggregate:
    """One run."""

    def __init__(
        self, settings: AggregateSettings, context: Context, decoder: Decoder, start: Positions
    ) -> None:
        self._settings = settings
        self._context = context
        self._decoder = decoder
        self._start = start
        spark = context.spark
        # Filled by tasks. A task that is tried again counts again, so these are never too low.
        self._seen = {
            verdict: spark.sparkContext.accumulator(0) for verdict in (ON_TIME, LATE, BAD)
        }
        self._before = dict.fromkeys(self._seen, 0)
        self._table: tuple[Any, Any] | None = None
        self.results = 0
        self.late = 0
        self.bad = 0

    def start(self) -> "StreamingQuery":
        """Make the query. InvalidArgumentError says which option is wrong."""
        from pyspark.errors import AnalysisException

        settings, spark = self._settings, self._context.spark
        stream = spark.readStream.format("moldau").options(**self._stream_options()).load()
        found = timed(flattened(stream, self._decoder), settings)
        seen = self._seen

        def count(verdict: int, rows: int) -> None:
            seen[verdict].add(rows)

        rows = on_time(found, settings.checkpoint, count)
        view = rows.withWatermark(found.column, settings.watermark)
        result = queried(spark, view, settings)
        if settings.to_table is not None:
            self._table = tables.opened(settings, result)
        else:
            # So that a wrong key is told now, and not in the first batch.
            messages(result, settings)
        writer = (
            result.writeStream.outputMode(settings.mode)
            .queryName(settings.name)
            .option("checkpointLocation", str(settings.checkpoint))
            .foreachBatch(self._on_batch)
        )
        if settings.continuous:
            writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        try:
            return writer.start()
        except AnalysisException as error:
            raise InvalidArgumentError(
                f"--sql cannot be run as a stream with --mode {settings.mode}: "
                f"{from_text(str(error))}",
                hint=f"group by window({found.column}, '1 minute'), or use --mode update",
            ) from None

    def _stream_options(self) -> dict[str, str]:
        options = read_options(self._settings)
        for name in list(options):
            if name.lower().startswith("starting"):
                options.pop(name)
        named: dict[str, dict[str, int]] = {}
        for place in latest_offsets(self._settings):
            # Partitions that came later are read from their beginning.
            offset = self._start.offsets.get(place, EARLIEST)
            named.setdefault(place.topic, {})[str(place.partition)] = offset
        return {**options, "startingOffsets": json.dumps(named)}

    # -- a batch

    def _on_batch(self, frame: "DataFrame", batch: int) -> None:
        """Called again with the same batch after a crash; then all of it has the same effect."""
        query = query_id(self._settings.checkpoint)
        # Computed once and to its end, even if its results were written before: the state of the
        # batch and its watermark are made by that.
        kept = frame.persist()
        side = None
        try:
            rows = kept.count()
            # Before anything is written: see _check_same.
            side, late, bad = self._side(batch)
            if rows:
                self._write_results(kept, query, batch)
            self.results += rows
            if side is not None and late + bad:
                self._write_side(side, query, batch)
                self.late += late
                self.bad += bad
                log.info("batch %d: %d late rows, %d bad ones", batch, late, bad)
                self._context.dead_letters(bad)
        finally:
            kept.unpersist()
            if side is not None:
                side.unpersist()

    def _write_results(self, frame: "DataFrame", query: str, batch: int) -> None:
        settings = self._settings
        if self._table is not None:
            table, schema = self._table
            mark = ((f"{WRITER}{settings.name}", settings.name),)
            tables.append(table, schema, frame, Writing(query, batch, mark), settings.name)
        else:
            rows = messages(frame, settings)
            self._write_once(rows, f"{query}-results", batch, {"topic": settings.to_topic or ""})

    def _write_side(self, side: "DataFrame", query: str, batch: int) -> None:
        self._write_once(side, f"{query}-side", batch, {})

    def _side(self, batch: int) -> tuple["DataFrame | None", int, int]:
        """The late and the bad rows of a batch, and how many there are; None if there are none."""
        counted: dict[int, int] = {verdict: int(seen.value) for verdict, seen in self._seen.items()}
        new: dict[int, int] = {
            verdict: counted[verdict] - self._before[verdict] for verdict in counted
        }
        self._before = counted
        ranges = ranges_of(self._settings.checkpoint, batch, self._start)
        # If nothing at all was counted nobody has looked: then look.
        if not ranges or (any(new.values()) and not new[LATE] + new[BAD]):
            return None, 0, 0
        watermark = read_batch(self._settings.checkpoint, batch).watermark_ms
        side = side_rows(self._records(ranges), self._decoder, self._settings, watermark).persist()
        found = {row["topic"]: row["count"] for row in side.groupBy("topic").count().collect()}
        late, bad = found.get(self._settings.late, 0), found.get(self._settings.dead, 0)
        self._check_same(new[BAD], bad)
        return side, late, bad

    def _check_same(self, counted: int, found: int) -> None:
        """A schema that came to the registry between the two looks made good rows of bad ones:
        these would be neither among the results nor among the bad ones."""
        if self._decoder.registry is not None and found < counted:
            raise PipelineError(
                f"{counted} rows could not be decoded, and {found} when they were looked at again: "
                "a schema has come to the registry meanwhile",
                hint="nothing was written: start it again, and the batch is done anew",
            )

    def _records(self, ranges: list[OffsetRange]) -> "DataFrame":
        """The records of a batch once more."""
        options = {
            name: value
            for name, value in read_options(self._settings).items()
            if name.lower() not in _STREAM_ONLY
        }
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for planned in ranges:
            assigned.setdefault(planned.topic, []).append(planned.partition)
            starts.setdefault(planned.topic, {})[str(planned.partition)] = planned.start
            ends.setdefault(planned.topic, {})[str(planned.partition)] = planned.end
        return (
            self._context.spark.read.format("moldau")
            .options(**options)
            .option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .load()
        )

    def _write_once(
        self, rows: "DataFrame", application: str, batch: int, options: dict[str, str]
    ) -> None:
        (
            rows.write.format("moldau")
            .mode("append")
            .option(BOOTSTRAP, self._settings.bootstrap)
            .options(**options)
            .option("txnAppId", f"aggregate-{application}")
            .option("txnVersion", str(batch))
            .save()
        )

    def outcome(self) -> Outcome:
        read = sum(int(seen.value) for seen in self._seen.values())
        output = self._settings.to_topic or self._settings.to_table
        return Outcome(
            summary=f"{self.results} results to {output} from {read} rows; {self.late} late, "
            f"{self.bad} bad",
            rows=read,
            dead_letters=self.bad,
            details={"results": self.results, "late": self.late, "bad": self.bad, "rows": read},
        )
