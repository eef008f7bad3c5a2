"""Owns the audit of a table: which of the topics' committed records are in it, and how often."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake import LakeTable, open_table
from moldau.spark.lake.schemas import to_text
from moldau.spark.lake.storage import normal_location
from moldau.spark.pipelines.audit.comparing import Finding
from moldau.spark.pipelines.audit.cut import (
    Bounds,
    Cut,
    ends_now,
    parsed_options,
    starts_now,
    take_cut,
)
from moldau.spark.pipelines.audit.decoding import count_undecodable, made_decoder
from moldau.spark.pipelines.audit.drift import summed
from moldau.spark.pipelines.audit.jobs import BucketFinding, Sums, findings, sums
from moldau.spark.pipelines.audit.planning import file_tasks, narrowed, topic_tasks
from moldau.spark.pipelines.audit.report import PartitionReport, Report, Undecodable, gathered
from moldau.spark.pipelines.audit.rows import CONTENT_COLUMNS, comparable_columns
from moldau.spark.pipelines.audit.settings import AuditSettings, Through
from moldau.spark.pipelines.audit.tally import BucketKey, Tally, suspects, total
from moldau.spark.pipelines.audit.tasks import DEAD, LAKE, TOPIC, Common, LakeWork, TopicWork, Work
from moldau.spark.pipelines.spec import Context, Progress
from moldau.spark.source.bounds import places_of
from moldau.spark.source.cluster import Cluster
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOKS_MAX: Final = 3
"""At rows that differ, while retention takes the beginning of the log away under our eyes."""


def open_audited(settings: AuditSettings) -> LakeTable:
    """Raises InvalidArgumentError if there is no table."""
    location = settings.table or ""
    table = open_table(
        location,
        settings.table_format,
        name=settings.table_name,
        storage=settings.storage,
    )
    if table.schema() is None:
        raise InvalidArgumentError(
            f"there is no {table.format} table at {normal_location(location)}",
            hint="see --table and --format; moldau pipeline run archive makes one",
        )
    return table


def cores_of(spark: "SparkSession") -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:
        # A Connect session has none; the cluster shares out more tasks than it has cores.
        return 8


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
        self._columns = comparable_columns(self._schema)
        self._decoder = made_decoder(settings)
        self._spark = context.spark
        self._cores = cores_of(self._spark)
        self._notes: list[str] = []

    def report(self) -> Report:
        if self._settings.through == Through.LAKE and not self._settings.groups:
            self._cut = self._through_lake()
        planned = sum(r.size for r in self._cut.ranges()) + self._snapshot.rows
        self._say("adding up", 0, planned)
        common = self._common(self._cut.places)
        works = [*self._topic_works(self._cut.ranges()), *self._lake_works()]
        found = sums(self._spark, works, common)
        differing = suspects(found.tallies[TOPIC], found.tallies[LAKE])
        self._say(f"{len(differing)} ranges differ" if differing else "", planned, planned)
        looked = self._look(differing) if differing else []
        self._note_what_is_not_compared()
        return Report(
            topics=self._settings.topics,
            against=self._table.location,
            compared=("offset", *self._columns),
            partitions=tuple(self._partitions(found, looked)),
            positions=self._cut.positions,
            lag_max=self._settings.lag_max,
            after_cut=found.after_cut,
            drifts=tuple(summed(found.drifts)),
            undecodable=self._undecodable(),
            version=self._snapshot.version,
            notes=tuple(self._notes),
        )

    def was_replaced(self) -> bool:
        """Whether somebody has taken files out of the table since the audit began."""
        now = {file.path for file in self._table.snapshot().files}
        return any(file.path not in now for file in self._snapshot.files)

    # -- what is read

    def _common(
        self, places: Mapping[TopicPartition, Bounds], chosen: frozenset[BucketKey] | None = None
    ) -> Common:
        return Common(
            places={(p.topic, p.partition): (b.start, b.end) for p, b in places.items()},
            topics=frozenset(self._settings.topics),
            columns=self._columns,
            chosen=chosen,
            numbers=tuple(sorted({key.number for key in chosen or ()})),
            ends={(p.topic, p.partition): end for p, end in self._ends.items()},
        )

    def _topic_works(self, ranges: Sequence[OffsetRange]) -> list[Work]:
        options = parsed_options(self._settings, self._settings.topics)
        return [
            TopicWork(options=options, ranges=some)
            for some in topic_tasks(ranges, cores=self._cores)
        ]

    def _lake_works(self) -> list[Work]:
        layout, schema = self._table.layout, to_text(self._schema)
        return [
            LakeWork(layout=layout, files=files, schema=schema)
            for files in file_tasks(self._snapshot.files, cores=self._cores)
        ]

    def _dead_works(self) -> list[Work]:
        topic = self._settings.dead_letters
        if topic is None:
            return []
        options = parsed_options(self._settings, (topic,))
        with closing(Cluster(options)) as cluster:
            places = places_of(cluster.topics())
            starts, ends = cluster.earliest(places), cluster.latest(places)
        ranges = [
            OffsetRange(topic=p.topic, partition=p.partition, start=starts[p], end=ends[p])
            for p in places
        ]
        return [
            TopicWork(options=options, ranges=some, side=DEAD)
            for some in topic_tasks(ranges, cores=self._cores)
        ]

    # -- looking

    def _through_lake(self) -> Cut:
        """Up to the last offset of each partition that is in the table."""
        everything = {
            place: replace(bounds, end=bounds.latest) for place, bounds in self._cut.places.items()
        }
        common = replace(self._common(everything), columns=())
        found = sums(self._spark, self._lake_works(), common)
        lasts: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        for key, tally in found.tallies[LAKE].items():
            place = (key.topic, key.partition)
            lasts[place] = max(lasts[place], tally.last)
        self._notes.append(
            "the cut is the last offset in the table: what is missing behind it is not seen; "
            "with --group, the archive's own position is taken"
        )
        return replace(
            self._cut,
            places={
                place: replace(
                    bounds,
                    end=min(
                        bounds.latest, max(bounds.start, lasts[place.topic, place.partition] + 1)
                    ),
                )
                for place, bounds in self._cut.places.items()
            },
        )

    def _look(self, differing: set[BucketKey]) -> list[BucketFinding]:
        """At the rows, where sums differ. What retention removes meanwhile is no difference."""
        places = dict(self._cut.places)
        dead = self._dead_works()
        lake = self._lake_works()
        ranges = narrowed(self._cut.ranges(), differing)
        found: list[BucketFinding] = []
        for _ in range(LOOKS_MAX):
            starts = starts_now(self._settings, places)
            places = {
                place: replace(bounds, start=max(bounds.start, starts[place]))
                for place, bounds in places.items()
            }
            # A leader that was new a moment ago may not have known yet how far all are.
            ends = ends_now(self._settings, places)
            self._ends = {p: max(end, ends[p]) for p, end in self._ends.items()}
            works = [*self._topic_works(ranges), *lake, *dead]
            found = findings(self._spark, works, self._common(places, frozenset(differing)))
            extra = {(f.topic, f.partition) for f in found if f.kind is Finding.EXTRA}
            later = starts_now(self._settings, places)
            if not any(
                later[place] > bounds.start and (place.topic, place.partition) in extra
                for place, bounds in places.items()
            ):
                break
        return found

    def _undecodable(self) -> Undecodable | None:
        if self._decoder is None:
            return None
        return count_undecodable(
            self._spark,
            self._settings,
            self._decoder,
            parsed_options(self._settings, self._settings.topics),
            topic_tasks(self._cut.ranges(), cores=self._cores),
        )

    # -- telling

    def _partitions(self, found: Sums, looked: Sequence[BucketFinding]) -> list[PartitionReport]:
        known = {(p.topic, p.partition) for p in self._cut.places}
        strange = {(key.topic, key.partition) for key in found.tallies[LAKE]} - known
        places = {
            **self._cut.places,
            **{
                TopicPartition(topic, PartitionIndex(partition)): Bounds(start=0, end=0, latest=0)
                for topic, partition in strange
            },
        }
        result = []
        for place, bounds in sorted(places.items()):
            here = (place.topic, place.partition)
            source, target, expired = (
                _total(found, side, here, is_expired=is_expired)
                for side, is_expired in ((TOPIC, False), (LAKE, False), (LAKE, True))
            )
            result.append(
                PartitionReport(
                    topic=place.topic,
                    partition=place.partition,
                    start=bounds.start,
                    end=bounds.end,
                    latest=bounds.latest,
                    source_rows=source.rows,
                    target_rows=target.rows,
                    source_checksum=source.checksum,
                    target_checksum=target.checksum,
                    expired_rows=expired.rows,
                    is_unknown=here in strange,
                    is_compacted=place.topic in self._cut.compacted,
                    found=gathered(
                        (each.kind, each.rows, each.ranges)
                        for each in looked
                        if (each.topic, each.partition) == here
                    ),
                )
            )
        return result

    def _note_what_is_not_compared(self) -> None:
        absent = [name for name in CONTENT_COLUMNS if name not in self._columns]
        if absent:
            self._notes.append(
                f"not compared, since the table does not hold it as the topic does: "
                f"{', '.join(absent)}"
            )
        for topic in sorted(self._cut.compacted):
            self._notes.append(
                f"{topic} is compacted: rows that only the table still has are no mistake"
            )
        idle = [str(p) for p, b in sorted(self._cut.places.items()) if b.end <= b.start < b.latest]
        if idle:
            self._notes.append(f"nothing is compared of {', '.join(idle)}: it is behind the cut")

    def _say(self, note: str, rows: int, rows_total: int) -> None:
        self._context.report(Progress(rows=rows, rows_total=rows_total, note=note))


def _total(sums_found: Sums, side: int, place: tuple[str, int], *, is_expired: bool) -> Tally:
    return total(
        tally
        for key, tally in sums_found.tallies[side].items()
        if (key.topic, key.partition) == place and key.is_expired == is_expired
    )
