"""Owns the audit of a table: which of the topics' committed records are in it, and how often."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake import LakeTable, open_table
from moldau.spark.lake.storage import normal_location
from moldau.spark.pipelines.audit.cut import (
    Bounds,
    Cut,
    ends_now,
    starts_now,
    take_cut,
    whole_topics,
)
from moldau.spark.pipelines.audit.decoding import count_undecodable, made_decoder
from moldau.spark.pipelines.audit.joining import (
    PLACE,
    Comparison,
    Counts,
    Finding,
    Limits,
    Place,
    Range,
    dead_places,
)
from moldau.spark.pipelines.audit.report import Offsets, PartitionReport, Report
from moldau.spark.pipelines.audit.settings import COMPARED, AuditSettings, Through
from moldau.spark.pipelines.audit.sides import (
    columns_of,
    hashed,
    table_side,
    topic_rows,
)
from moldau.spark.pipelines.newest import newest
from moldau.spark.pipelines.spec import Context, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOKS_MAX: Final = 3
"""At rows that differ, while retention takes the beginning of the log away under our eyes."""

Ranges = Mapping[Place, Mapping[Finding, list[Range]]]


def open_audited(settings: AuditSettings) -> LakeTable:
    """Raises InvalidArgumentError if there is no table."""
    location = settings.table or ""
    table = open_table(
        location,
        settings.table_format,
        name=settings.table_name,
        storage=settings.storage,
        partition_columns=None,
    )
    if table.schema() is None:
        raise InvalidArgumentError(
            f"there is no {table.format} table at {normal_location(location)}",
            hint="see --table and --format; moldau pipeline run archive makes one",
        )
    return table


class TableAudit:
    """One audit of one snapshot."""

    def __init__(self, settings: AuditSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        # The order matters: see `cut`.
        self._cut = take_cut(settings)
        self._table = open_audited(settings)
        self._snapshot = self._table.snapshot()
        self._ends = ends_now(settings, self._cut.places)
        self._schema = self._table.schema()
        found = columns_of(self._schema)
        self._columns = {n: column for n, column in found.items() if n not in settings.ignored}
        self._spark = context.spark
        self._decoder = made_decoder(settings)
        self._notes: list[str] = []

    def report(self) -> Report:
        if self._settings.through == Through.LAKE and not self._settings.groups:
            self._cut = self._through_lake()
        planned = sum(r.size for r in self._cut.ranges()) + self._snapshot.rows
        self._say("comparing", 0, planned)
        counts, ranges = self._compared()
        self._say("", planned, planned)
        self._tell_what_is_special()
        return Report(
            topics=self._settings.topics,
            against=self._table.location,
            compared=("offset", *self._columns),
            not_compared=tuple(
                n for n in COMPARED if n not in self._columns and n not in self._settings.ignored
            ),
            partitions=tuple(self._partitions(counts, ranges)),
            positions=self._cut.positions,
            lag_max=self._settings.lag_max,
            after_cut=sum(each.after_cut for each in counts.values()),
            undecodable=None
            if self._decoder is None
            else count_undecodable(
                topic_rows(self._spark, self._settings, self._cut.places),
                self._settings,
                self._decoder,
            ),
            version=self._snapshot.version,
            notes=tuple(self._notes),
        )

    def was_replaced(self) -> bool:
        """Whether somebody has taken files out of the table since the audit began."""
        now = {file.path for file in self._table.snapshot().files}
        return any(file.path not in now for file in self._snapshot.files)

    # -- comparing

    def _compared(self) -> tuple[dict[Place, Counts], Ranges]:
        """What retention removes while we read is no difference: then it is read once more."""
        places = dict(self._cut.places)
        left = LOOKS_MAX
        while True:
            left -= 1
            with closing(self._comparison(places)) as comparison:
                counts = comparison.counts()
                if not any(each.found for each in counts.values()):
                    return counts, {}
                starts = starts_now(self._settings, places)
                # A leader that was new a moment ago may not have known yet how far all are.
                ends = ends_now(self._settings, places)
                has_moved = any(
                    starts[place] > bounds.start or ends[place] > self._ends[place]
                    for place, bounds in places.items()
                    if Finding.EXTRA in _found(counts, place)
                )
                if not has_moved or not left:
                    return counts, comparison.ranges()
            self._ends = {place: max(end, ends[place]) for place, end in self._ends.items()}
            places = {
                place: replace(bounds, start=max(bounds.start, starts[place]))
                for place, bounds in places.items()
            }

    def _comparison(self, places: Mapping[TopicPartition, Bounds]) -> Comparison:
        from pyspark.sql import functions as F  # noqa: N812

        source = topic_rows(self._spark, self._settings, places)
        target = self._table_rows().where(F.col("topic").isin(list(self._settings.topics)))
        if not self._table.partition_columns:
            source, target = self._by_key(places, target)
        limits = {
            (place.topic, int(place.partition)): Limits(bounds.start, bounds.end, self._ends[place])
            for place, bounds in places.items()
        }
        columns = {name: name for name in self._columns}
        return Comparison(self._spark, hashed(source, columns), target, limits, self._dead())

    def _by_key(
        self, places: Mapping[TopicPartition, Bounds], target: "DataFrame"
    ) -> tuple["DataFrame", "DataFrame"]:
        """Both sides for a table that keeps the newest row of each key.

        Keys with a record behind the cut are left out: the table may have either of the two.
        """
        from pyspark.sql import functions as F  # noqa: N812

        wide = {place: replace(each, end=self._ends[place]) for place, each in places.items()}
        rows = topic_rows(self._spark, self._settings, wide).where("key IS NOT NULL")
        ends = self._spark.createDataFrame(
            [(place.topic, int(place.partition), each.end) for place, each in places.items()],
            "topic string, partition int, _end bigint",
        )
        rows = rows.join(F.broadcast(ends), ["topic", "partition"])
        later = rows.where("offset >= _end").select("topic", "key").distinct()
        # Its last record alone says which row of the table is of such a key.
        replaced = rows.join(later, ["topic", "key"], "left_semi").select(*PLACE)
        kept = newest(rows.where("offset < _end"), ["key"]).join(
            later, ["topic", "key"], "left_anti"
        )
        return kept.where("value IS NOT NULL"), target.join(replaced, list(PLACE), "left_anti")

    def _table_rows(self) -> "DataFrame":
        return table_side(self._spark, self._table, self._schema, self._snapshot, self._columns)

    def _dead(self) -> "DataFrame | None":
        topic = self._settings.dead_letters
        if topic is None:
            return None
        places = whole_topics(self._settings, (topic,))
        return dead_places(topic_rows(self._spark, self._settings, places))

    def _through_lake(self) -> Cut:
        """Up to the last offset of each partition that is in the table."""
        from pyspark.sql import functions as F  # noqa: N812

        self._notes.append(
            "the cut is the last offset in the table: what is missing behind it is not seen; "
            "with --group, the archive's own position is taken"
        )
        found = self._table_rows().groupBy("topic", "partition").agg(F.max("offset").alias("last"))
        lasts = {(row["topic"], row["partition"]): row["last"] for row in found.collect()}
        places = {}
        for place, bounds in self._cut.places.items():
            last = lasts.get((place.topic, place.partition), -1)
            end = min(bounds.latest, max(bounds.start, last + 1))
            places[place] = replace(bounds, end=end)
        return replace(self._cut, places=places)

    # -- telling

    def _partitions(self, counts: Mapping[Place, Counts], ranges: Ranges) -> list[PartitionReport]:
        known = {(place.topic, int(place.partition)) for place in self._cut.places}
        strange = [
            TopicPartition(topic, PartitionIndex(partition))
            for topic, partition in counts
            if (topic, partition) not in known
        ]
        places = {
            **self._cut.places,
            **dict.fromkeys(strange, Bounds(start=0, end=0, latest=0)),
        }
        return [
            _partition_report(
                place,
                bounds,
                counts.get((place.topic, place.partition)),
                ranges.get((place.topic, place.partition), {}),
                is_unknown=place in strange,
                is_compacted=place.topic in self._cut.compacted,
            )
            for place, bounds in sorted(places.items())
        ]

    def _tell_what_is_special(self) -> None:
        if not self._table.partition_columns:
            self._notes.append("the table keeps the newest row of each key: so it was compared")
        for topic in sorted(self._cut.compacted):
            self._notes.append(
                f"{topic} is compacted: rows that only the table still has are no mistake"
            )
        idle = [str(p) for p, b in sorted(self._cut.places.items()) if b.end <= b.start < b.latest]
        if idle:
            self._notes.append(f"nothing is compared of {', '.join(idle)}: it is behind the cut")

    def _say(self, note: str, rows: int, rows_total: int) -> None:
        self._context.report(Progress(rows=rows, rows_total=rows_total, note=note))


def _found(counts: Mapping[Place, Counts], place: TopicPartition) -> Mapping[Finding, int]:
    here = counts.get((place.topic, int(place.partition)))
    return {} if here is None else here.found


def _partition_report(
    place: TopicPartition,
    bounds: Bounds,
    counts: Counts | None,
    ranges: Mapping[Finding, list[Range]],
    *,
    is_unknown: bool,
    is_compacted: bool,
) -> PartitionReport:
    nothing = Counts(
        source_rows=0,
        target_rows=0,
        source_checksum=f"{0:016x}",
        target_checksum=f"{0:016x}",
        expired_rows=0,
        after_cut=0,
        found={},
    )
    told = counts or nothing
    return PartitionReport(
        topic=place.topic,
        partition=place.partition,
        start=bounds.start,
        end=bounds.end,
        latest=bounds.latest,
        source_rows=told.source_rows,
        target_rows=told.target_rows,
        source_checksum=told.source_checksum,
        target_checksum=told.target_checksum,
        expired_rows=told.expired_rows,
        is_unknown=is_unknown,
        is_compacted=is_compacted,
        found={
            kind: Offsets(rows=rows, ranges=tuple(ranges.get(kind, ())))
            for kind, rows in told.found.items()
        },
    )
