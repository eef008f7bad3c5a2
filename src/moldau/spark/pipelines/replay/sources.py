"""Responsible for where a replay reads: which offsets topics and tables hold, and their rows.

Offsets are what is pinned, not files: a table may be compacted while a replay goes on. A partition
of the source is one task's, from its first offset to its last, and that task writes it: nothing
between the two moves rows from one task to another.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.spark.lake.table import DataFile, Snapshot
from moldau.spark.option_table import Side, names_of
from moldau.spark.options import BOOTSTRAP, Options
from moldau.spark.pipelines import rows as tables
from moldau.spark.pipelines.replay.selection import ReplaySettings, Selection, Span, place_of
from moldau.spark.pipelines.rows import IDENTITY
from moldau.spark.pipelines.spec import PipelineContext
from moldau.spark.schema import HEADERS_COLUMN
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import parse_read_options
from moldau.spark.source.source_client import NO_OFFSET, SourceClient, places_of

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
"""What the replay says itself: a user's would send other records, or in another order."""


def options_for(settings: ReplaySettings, side: Side) -> dict[str, str]:
    """The user's for that side. Raises InvalidArgumentError for one that is unknown, or ours."""
    for name in settings.options:
        if name.lower() in _OURS:
            raise InvalidArgumentError(
                f"option {name} is the replay's own",
                hint="records are selected by --from-time, --to-time, --offsets and --key",
            )
    Options(settings.options).check_names(Side.BOTH)
    known = {name.lower() for name in names_of(side)}
    given = {name: value for name, value in settings.options.items() if name.lower() in known}
    return {**given, BOOTSTRAP: settings.bootstrap}


def _read_options(settings: ReplaySettings) -> dict[str, str]:
    given = options_for(settings, Side.READ)
    return {"isolation": "read_committed", **given, "includeHeaders": "true"}


@contextmanager
def cluster_of(settings: ReplaySettings, topics: Sequence[str]) -> Iterator[SourceClient]:
    options = {**_read_options(settings), "subscribe": ",".join(topics)}
    with closing(SourceClient(parse_read_options(options, streaming=False))) as cluster:
        yield cluster


class TopicSource:
    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def ranges(
        self, selection: Selection, context: PipelineContext | None
    ) -> tuple[list[OffsetRange], int]:
        """The offsets that may hold what is selected, as of now. Needs no context.

        And how many partitions the widest topic has.
        """
        topics = self._settings.topics
        with cluster_of(self._settings, topics) as cluster:
            views = cluster.topics(missing_is_fine=True)
            if missing := [name for name in topics if name not in views]:
                raise NotFoundError(
                    f"there is no topic {', '.join(missing)} to replay",
                    hint="see which there are: moldau topic list · another one: --topic NAME",
                )
            places = places_of(views)
            starts, ends = cluster.earliest(places), cluster.latest(places)
            whole = [
                OffsetRange(**p._asdict(), start=starts[p], end=ends[p], topic_id=views[p.topic].id)
                for p in places
            ]
            ranges = _clipped(whole, selection, must_hold=True)
            if selection.from_ms is not None:
                found = cluster.offsets(dict.fromkeys(places, selection.from_ms))
                # None is as young as that, and what comes from now on is not part of it.
                starts = {p: ends[p] if at == NO_OFFSET else at for p, at in found.items()}
            if selection.to_ms is not None and self._settings.times_rise:
                found = cluster.offsets(dict.fromkeys(places, selection.to_ms))
                ends = {p: ends[p] if at == NO_OFFSET else at for p, at in found.items()}
        timely = [
            replace(each, start=max(each.start, starts[p]), end=min(each.end, ends[p]))
            for each in ranges
            for p in [place_of(each)]
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
    """A table that archives write. Opened in the driver."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._table, self._schema = tables.existing_table(
            settings.table or "", settings.table_format, settings.storage
        )
        kinds = {field.name: str(field.type) for field in self._schema}
        raw = [n for n in ("value", "raw") if kinds.get(n) in ("binary", "large_binary")]
        if not raw:
            raise InvalidArgumentError(
                f"the table at {self._table.location} holds decoded values, which cannot be made "
                "bytes again",
                hint="replay from the topic (--topic), or from an archive of raw values",
            )
        self._value = raw[0]

    def snapshot(self) -> Snapshot:
        return self._table.snapshot()

    def ranges(
        self, selection: Selection, context: PipelineContext
    ) -> tuple[list[OffsetRange], int]:
        """From the first to the last offset that is selected, of each partition.

        And how many partitions it takes to keep their numbers. Spark reads the table for it.
        """
        from pyspark.sql import functions as F  # noqa: N812

        spark, files = context.spark, self.snapshot().files
        rows = tables.table_rows(
            spark, self._table, self._schema, files, [*IDENTITY, "timestamp", "key"]
        )
        found = _selected(spark, rows, selection).groupBy("topic", "partition")
        bounds = found.agg(F.min("offset").alias("start"), (F.max("offset") + 1).alias("end"))
        whole = [OffsetRange(**row.asDict()) for row in bounds.sort("topic", "partition").collect()]
        ranges = _clipped(whole, selection, must_hold=False)
        return ranges, max((planned.partition + 1 for planned in ranges), default=1)

    def rows(
        self, spark: "SparkSession", ranges: Sequence[OffsetRange], selection: Selection
    ) -> "DataFrame":
        """As of topics; none is there twice."""
        from pyspark.sql import functions as F  # noqa: N812

        names = [*IDENTITY, "timestamp", "key", self._value, "headers"]
        there = [name for name in names if name in self._schema.names]
        rows = tables.table_rows(spark, self._table, self._schema, self._files_with(ranges), there)
        if "headers" not in there:
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
        """The files, as of now, that may hold some of these offsets."""
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
    ranges: Sequence[OffsetRange], selection: Selection, *, must_hold: bool
) -> list[OffsetRange]:
    """What `--offsets` selects of them.

    Offsets of topics that somebody names have to be there: to send fewer would go unnoticed.
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
        if must_hold and is_named and not whole.start <= start < end <= whole.end:
            holds = f"holds {whole.start} to {whole.end - 1}" if whole.size else "is empty"
            raise InvalidArgumentError(
                f"--offsets asks for offsets of {place_of(whole)} that are not there: it {holds}"
            )
        found.append(replace(whole, start=max(start, whole.start), end=min(end, whole.end)))
    if must_hold and unknown:
        topic, partition = unknown.pop()
        of = f"{topic} has" if topic else "the topics have"
        raise InvalidArgumentError(f"--offsets names partition {partition}, but {of} none such")
    return [planned for planned in found if planned.size]


def _selected(spark: "SparkSession", rows: "DataFrame", selection: Selection) -> "DataFrame":
    """Those that times and keys select. Offsets were seen to before."""
    from pyspark.sql import functions as F  # noqa: N812

    if selection.from_ms is not None:
        rows = rows.where(F.col("timestamp") >= F.timestamp_millis(F.lit(selection.from_ms)))
    if selection.to_ms is not None:
        rows = rows.where(F.col("timestamp") < F.timestamp_millis(F.lit(selection.to_ms)))
    if selection.keys is None:
        return rows
    keys = spark.createDataFrame([(bytearray(k),) for k in sorted(selection.keys)], "key binary")
    # Broadcast, so that rows stay in their task and in their order.
    return rows.join(F.broadcast(keys), "key", "left_semi")
