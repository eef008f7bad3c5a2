"""The sources of a replay: the offset ranges of topics and tables, and their rows.

The state stores offsets, not data files: a table may be compacted during a replay. One task reads
and writes each source partition in order: rows are never shuffled between tasks.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.spark.lake.model import DataFile, Snapshot
from moldau.spark.option_table import BOOTSTRAP, Side, names_of
from moldau.spark.options import Options
from moldau.spark.pipelines import rows as tables
from moldau.spark.pipelines.replay.selection import Selection, Span
from moldau.spark.pipelines.rows import IDENTITY
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.pipelines.spec import PipelineContext
from moldau.spark.schema import HEADERS_COLUMN
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import parse_read_options
from moldau.spark.source.source_client import NO_OFFSET, SourceClient, partitions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS: Final = frozenset(
    {
        *("subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets"),
        *("startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp"),
        *("endingoffsetsbytimestamp", "minpartitions", "maxrecordsperpartition", "topic"),
        *("exactlyonce", "writetimestamp", "groupid", "kafka.group.id", "txnappid", "txnversion"),
    }
)
"""Options that the replay sets: a user's would change the sent records or their order."""


def options_for(settings: ReplaySettings, side: Side) -> dict[str, str]:
    """The user's options for that side. InvalidArgumentError for unknown and reserved ones."""
    for name in settings.options:
        if name.lower() in _OURS:
            raise InvalidArgumentError(
                f"option {name} is set by the replay",
                hint="select records by --from-time, --to-time, --offsets and --key",
            )
    Options(settings.options).check_names(Side.BOTH)
    known = {name.lower() for name in names_of(side)}
    given = {name: value for name, value in settings.options.items() if name.lower() in known}
    return {**given, BOOTSTRAP: settings.bootstrap}


def _read_options(settings: ReplaySettings) -> dict[str, str]:
    given = options_for(settings, Side.READ)
    return {"isolation": "read_committed", **given, "includeHeaders": "true"}


@contextmanager
def client_for(settings: ReplaySettings, topics: Sequence[str]) -> Iterator[SourceClient]:
    options = {**_read_options(settings), "subscribe": ",".join(topics)}
    with closing(SourceClient(parse_read_options(options, streaming=False))) as client:
        yield client


class TopicSource:
    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def ranges(
        self, selection: Selection, context: PipelineContext | None
    ) -> tuple[list[OffsetRange], int]:
        """The ranges that may hold selected records, and the largest partition count."""
        topics = self._settings.topics
        with client_for(self._settings, topics) as client:
            views = client.topics(missing_is_fine=True)
            if missing := [name for name in topics if name not in views]:
                raise NotFoundError(
                    f"unknown topic {', '.join(missing)}",
                    hint="list topics: moldau topic list · choose another: --topic NAME",
                )
            partitions = partitions_of(views)
            starts, ends = client.earliest(partitions), client.latest(partitions)
            whole = [
                OffsetRange(**p._asdict(), start=starts[p], end=ends[p], topic_id=views[p.topic].id)
                for p in partitions
            ]
            ranges = _clipped(whole, selection, must_exist=True)
            if selection.from_ms is not None:
                found = client.offsets(dict.fromkeys(partitions, selection.from_ms))
                # NO_OFFSET: no record is that recent, and later ones are not part of the replay.
                starts = {p: ends[p] if at == NO_OFFSET else at for p, at in found.items()}
            if selection.to_ms is not None and self._settings.times_rise:
                found = client.offsets(dict.fromkeys(partitions, selection.to_ms))
                ends = {p: ends[p] if at == NO_OFFSET else at for p, at in found.items()}
        timely = [
            replace(each, start=max(each.start, starts[each.tp]), end=min(each.end, ends[each.tp]))
            for each in ranges
        ]
        widest = max(len(view.partitions) for view in views.values())
        return [planned for planned in timely if planned.size], widest

    def rows(
        self, spark: "SparkSession", ranges: Sequence[OffsetRange], selection: Selection
    ) -> "DataFrame":
        """The selected rows of a batch, each partition in one task and in order."""
        rows = tables.topic_rows(spark, _read_options(self._settings), ranges)
        return _selected(spark, rows, selection)


class TableSource:
    """A table that an archive wrote. Opened in the driver."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._table, self._schema = tables.existing_table(
            settings.table or "", settings.table_format, settings.storage
        )
        kinds = {field.name: str(field.type) for field in self._schema}
        raw = [n for n in ("value", "raw") if kinds.get(n) in ("binary", "large_binary")]
        if not raw:
            raise InvalidArgumentError(
                f"the table at {self._table.location} has only decoded values, which cannot be "
                "encoded again",
                hint="replay from the topic (--topic), or archive with --keep-raw",
            )
        self._value = raw[0]

    def snapshot(self) -> Snapshot:
        return self._table.snapshot()

    def ranges(
        self, selection: Selection, context: PipelineContext
    ) -> tuple[list[OffsetRange], int]:
        """The same; reads the table with Spark."""
        from pyspark.sql import functions as F  # noqa: N812

        spark, files = context.spark, self.snapshot().files
        rows = tables.table_rows(
            spark, self._table, self._schema, files, [*IDENTITY, "timestamp", "key"]
        )
        found = _selected(spark, rows, selection).groupBy("topic", "partition")
        bounds = found.agg(F.min("offset").alias("start"), (F.max("offset") + 1).alias("end"))
        whole = [OffsetRange(**row.asDict()) for row in bounds.sort("topic", "partition").collect()]
        ranges = _clipped(whole, selection, must_exist=False)
        return ranges, max((planned.partition + 1 for planned in ranges), default=1)

    def rows(
        self, spark: "SparkSession", ranges: Sequence[OffsetRange], selection: Selection
    ) -> "DataFrame":
        """The same as of topics, without duplicates."""
        from pyspark.sql import functions as F  # noqa: N812

        names = [*IDENTITY, "timestamp", "key", self._value, "headers"]
        columns = [name for name in names if name in self._schema.names]
        files = self._files_with(ranges)
        rows = tables.table_rows(spark, self._table, self._schema, files, columns)
        if "headers" not in columns:
            rows = rows.withColumn("headers", F.lit(None).cast(HEADERS_COLUMN[1]))
        wanted = spark.createDataFrame(
            [(each.topic, each.partition, each.start, each.end - 1) for each in ranges],
            "topic string, partition int, first bigint, last bigint",
        )
        rows = rows.join(F.broadcast(wanted), ["topic", "partition"])
        rows = rows.where(F.col("offset").between(F.col("first"), F.col("last")))
        return (
            _selected(spark, rows.withColumnRenamed(self._value, "value"), selection)
            .repartition(len(ranges), "topic", "partition")
            .dropDuplicates(list(IDENTITY))
            .sortWithinPartitions(*IDENTITY)
        )

    def _files_with(self, ranges: Sequence[OffsetRange]) -> list[DataFile]:
        """The current data files that may hold some of these offsets."""
        return [
            file
            for file in self.snapshot().files
            if file.offsets is None
            or any(
                file.offsets[0] < planned.end and planned.start <= file.offsets[1]
                for planned in ranges
            )
        ]


def source_of(settings: ReplaySettings) -> TopicSource | TableSource:
    return TopicSource(settings) if settings.topics else TableSource(settings)


def _clipped(
    ranges: Sequence[OffsetRange], selection: Selection, *, must_exist: bool
) -> list[OffsetRange]:
    """The part of the ranges that `--offsets` selects.

    With `must_exist`, missing offsets are an error: sending fewer records could go unnoticed.
    """
    found, unknown = [], set(selection.spans)
    for whole in ranges:
        unknown -= {(whole.topic, whole.partition), (None, whole.partition)}
        span = selection.span(whole.topic, whole.partition)
        if span is None:
            continue
        start = whole.start if span.first is None else span.first
        end = whole.end if span.end is None else span.end
        is_named = span != Span(None, None)
        if must_exist and is_named and not whole.start <= start < end <= whole.end:
            has = f"has offsets {whole.start} to {whole.end - 1}" if whole.size else "is empty"
            raise InvalidArgumentError(
                f"--offsets names offsets of {whole.tp} that do not exist: the partition {has}"
            )
        found.append(replace(whole, start=max(start, whole.start), end=min(end, whole.end)))
    if must_exist and unknown:
        topic, partition = unknown.pop()
        of = f" of {topic}" if topic else ""
        raise InvalidArgumentError(f"--offsets names the unknown partition {partition}{of}")
    return [planned for planned in found if planned.size]


def _selected(spark: "SparkSession", rows: "DataFrame", selection: Selection) -> "DataFrame":
    """The rows that timestamps and keys select; the ranges have selected offsets before."""
    from pyspark.sql import functions as F  # noqa: N812

    if selection.from_ms is not None:
        rows = rows.where(F.col("timestamp") >= F.timestamp_millis(F.lit(selection.from_ms)))
    if selection.to_ms is not None:
        rows = rows.where(F.col("timestamp") < F.timestamp_millis(F.lit(selection.to_ms)))
    if selection.keys is None:
        return rows
    keys = spark.createDataFrame([(bytearray(k),) for k in sorted(selection.keys)], "key binary")
    # Broadcast, so that rows stay in their task and in order.
    return rows.join(F.broadcast(keys), "key", "left_semi")
