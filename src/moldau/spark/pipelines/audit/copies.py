"""Owns the audit of a copy: each record of the topics exactly once in another topic.

The order of what is asked for makes it right while everything runs: first where the inputs end that
must have been copied, then where the copy ends, then where the inputs end by now. A copy of an
input that came in between is allowed, and need not be there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.pipelines.audit.comparing import RANGES_MAX, Copies, Finding, compare_copies
from moldau.spark.pipelines.audit.cut import Bounds, parsed_options, read_options, take_cut
from moldau.spark.pipelines.audit.digest import column_digests, joined
from moldau.spark.pipelines.audit.jobs import TALLY_DDL, Sums, batch_of, read_sums, sums_batch
from moldau.spark.pipelines.audit.matching import DEFAULT, expression
from moldau.spark.pipelines.audit.ranges import Range, ranges_of
from moldau.spark.pipelines.audit.report import PartitionReport, Report, gathered
from moldau.spark.pipelines.audit.settings import AuditSettings
from moldau.spark.pipelines.audit.tally import (
    BucketKey,
    Tallies,
    Tally,
    add_up,
    suspects,
    tally_identities,
)
from moldau.spark.pipelines.spec import Context, Progress
from moldau.spark.source.bounds import places_of
from moldau.spark.source.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WANTED, COPIED, ALLOWED = 0, 1, 2
"""The sides."""
BUCKET_ROWS: Final = 65_536
_ROWS_DDL: Final = "side int, bucket bigint, place bigint, offset bigint, identity bigint"
_ROWS_SCHEMA: Final = pa.schema(
    [pa.field("side", pa.int32())]
    + [pa.field(name, pa.int64()) for name in ("bucket", "place", "offset", "identity")]
)
_FOUND_DDL: Final = "place bigint, kind string, rows bigint, ranges string"
_FOUND_SCHEMA: Final = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("ranges", pa.string()),
    ]
)
_PARTITION_BITS: Final = 32
_WHOLE: Final = -1
"""The number of the bucket that stands for a partition, whose rows are in many."""
_UNMATCHED: Final = -2
"""That of rows in which all that they are matched by is null: they are all alike."""

Places = Mapping[TopicPartition, Bounds]


class CopyAudit:
    """One audit of topics against another topic."""

    def __init__(self, settings: AuditSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._target = settings.against_topic or ""
        self._terms = settings.match or DEFAULT
        self._target_terms = settings.match_against or self._terms
        self._expressions = [expression(term) for term in self._terms]
        self._target_expressions = [expression(term) for term in self._target_terms]
        self._cut = take_cut(settings)
        self._outputs = self._whole((self._target,))
        self._inputs_now = self._whole(settings.topics)
        self._notes: list[str] = []

    def report(self) -> Report:
        places = (*self._cut.places.values(), *self._outputs.values())
        planned = sum(bounds.end - bounds.start for bounds in places)
        self._context.report(Progress(rows_total=planned, note="adding up"))
        buckets = max(1, -(-planned // (2 * BUCKET_ROWS)))
        sides = {
            WANTED: self._frame(self._cut.places, self._expressions),
            COPIED: self._frame(self._outputs, self._target_expressions),
        }
        frames = [
            frame.mapInArrow(partial(_tally_task, side, buckets), TALLY_DDL)
            for side, frame in sides.items()
        ]
        found = read_sums(frames[0].unionAll(frames[1]))
        differing = frozenset(
            key.number
            for key in suspects(found.tallies[WANTED], found.tallies[COPIED])
            if key.number >= 0
        )
        self._context.report(Progress(rows=planned, rows_total=planned))
        looked = self._look(sides, differing, buckets) if differing else {}
        partitions = tuple(self._partitions(found, looked))
        alike = found.tallies[WANTED].get(BucketKey("", 0, False, _UNMATCHED), Tally()).rows
        if alike:
            self._notes.append(
                f"{alike} records of the topics are only counted: what they are matched by "
                f"({', '.join(self._terms)}) is null in them; see --match"
            )
        compared = [
            term if term == other else f"{term} = {other}"
            for term, other in zip(self._terms, self._target_terms, strict=True)
        ]
        return Report(
            topics=self._settings.topics,
            against=self._target,
            compared=tuple(compared),
            partitions=partitions,
            positions=self._cut.positions,
            lag_max=self._settings.lag_max,
            notes=tuple(self._notes),
            unmatched=alike,
        )

    def _whole(self, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
        """All that there is of some topics now."""
        with closing(Cluster(parsed_options(self._settings, topics))) as cluster:
            places = places_of(cluster.topics())
            ends, starts = cluster.latest(places), cluster.earliest(places)
        return {
            place: Bounds(start=starts[place], end=ends[place], latest=ends[place])
            for place in places
        }

    def _frame(self, places: Places, expressions: Iterable[str]) -> "DataFrame":
        """The rows of a side: topic, partition, offset, and what they are matched by."""
        bounds: dict[str, dict[str, dict[str, int]]] = {"starting": {}, "ending": {}}
        for place, each in places.items():
            for side, offset in (("starting", each.start), ("ending", each.end)):
                bounds[side].setdefault(place.topic, {})[str(place.partition)] = offset
        topics = sorted(bounds["starting"])
        frame = (
            self._context.spark.read.format("moldau")
            .options(**read_options(self._settings, topics))
            .options(**{f"{side}Offsets": json.dumps(found) for side, found in bounds.items()})
            .load()
        )
        names = [f"({text}) AS match{number}" for number, text in enumerate(expressions)]
        # Wrong SQL is the user's: Spark says what is wrong with it when the columns are named.
        chosen = frame.selectExpr("topic", "partition", "offset", *names)
        plain = [
            f"match{number}"
            if chosen.schema[f"match{number}"].dataType.typeName() == "binary"
            else f"CAST(match{number} AS STRING) AS match{number}"
            for number in range(len(names))
        ]
        return chosen.selectExpr("topic", "partition", "offset", *plain)

    # -- looking

    def _look(
        self, sides: Mapping[int, "DataFrame"], differing: frozenset[int], buckets: int
    ) -> dict[TopicPartition, list[tuple[Finding, int, list[Range]]]]:
        later = {
            place: replace(bounds, start=self._cut.places[place].end)
            for place, bounds in self._inputs_now.items()
            if place in self._cut.places and bounds.end > self._cut.places[place].end
        }
        if later:
            # All partitions must be named; those without anything new are empty ranges.
            rest = {
                place: replace(bounds, start=bounds.end)
                for place, bounds in self._cut.places.items()
                if place not in later
            }
            sides = {**sides, ALLOWED: self._frame({**rest, **later}, self._expressions)}
        names = self._names()
        frames = [
            frame.mapInArrow(partial(_rows_task, side, buckets, differing, names), _ROWS_DDL)
            for side, frame in sides.items()
        ]
        rows = frames[0]
        for more in frames[1:]:
            rows = rows.unionAll(more)
        compared = rows.groupBy("bucket").applyInArrow(_compare_bucket, _FOUND_DDL)
        found: dict[TopicPartition, list[tuple[Finding, int, list[Range]]]] = {}
        for row in compared.toArrow().to_pylist():
            index, partition = divmod(row["place"], 1 << _PARTITION_BITS)
            place = TopicPartition(names[index], PartitionIndex(partition))
            ranges = [Range(*numbers) for numbers in json.loads(row["ranges"])]
            found.setdefault(place, []).append((Finding(row["kind"]), row["rows"], ranges))
        return found

    def _names(self) -> tuple[str, ...]:
        return (*sorted(self._settings.topics), self._target)

    # -- telling

    def _partitions(
        self,
        found: Sums,
        looked: Mapping[TopicPartition, list[tuple[Finding, int, list[Range]]]],
    ) -> list[PartitionReport]:
        is_cut_off = any(bounds.start > 0 for bounds in self._cut.places.values())
        if is_cut_off:
            self._notes.append(
                "the topics do not begin at offset 0: copies of records that retention removed "
                "cannot be told from extra ones, and are not held to be wrong"
            )
        result = []
        for side, places in ((WANTED, self._cut.places), (COPIED, self._outputs)):
            for place, bounds in sorted(places.items()):
                key = BucketKey(place.topic, place.partition, False, _WHOLE)
                tally = found.tallies[side].get(key, Tally())
                is_source = side == WANTED
                result.append(
                    PartitionReport(
                        topic=place.topic,
                        partition=place.partition,
                        start=bounds.start,
                        end=bounds.end,
                        latest=bounds.latest,
                        source_rows=tally.rows if is_source else None,
                        target_rows=None if is_source else tally.rows,
                        source_checksum=tally.checksum if is_source else None,
                        target_checksum=None if is_source else tally.checksum,
                        is_compacted=is_cut_off,
                        found=gathered(looked.get(place, ())),
                    )
                )
        return result


# -- in tasks


def _identities(batch: Any) -> Any:
    names = [name for name in batch.schema.names if name.startswith("match")]
    return joined([column_digests(batch.column(name)) for name in names])


def _are_null(batch: Any) -> Any:
    """In which rows there is nothing to match by."""
    found = np.ones(batch.num_rows, dtype=bool)
    for name in batch.schema.names:
        if name.startswith("match"):
            found &= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return found


def _tally_task(side: int, buckets: int, batches: Iterable[Any]) -> Iterator[Any]:
    tallies: Tallies = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        identities = _identities(batch)
        add_up(tallies, tally_identities(identities, bucket_count=buckets))
        for tally in tally_identities(identities[_are_null(batch)], bucket_count=1).values():
            add_up(tallies, {BucketKey("", 0, False, _UNMATCHED): tally})
        places = pa.table(
            [batch.column("topic"), batch.column("partition")], names=["topic", "partition"]
        )
        for row in places.group_by(["topic", "partition"]).aggregate([]).to_pylist():
            chosen = pc.and_(
                pc.equal(batch.column("topic"), row["topic"]),
                pc.equal(batch.column("partition"), row["partition"]),
            ).to_numpy(zero_copy_only=False)
            some = tally_identities(identities[chosen], bucket_count=1)
            add_up(
                tallies,
                {
                    BucketKey(row["topic"], row["partition"], False, _WHOLE): tally
                    for tally in some.values()
                },
            )
    yield sums_batch(side, tallies)


def _rows_task(
    side: int,
    buckets: int,
    chosen: frozenset[int],
    names: tuple[str, ...],
    batches: Iterable[Any],
) -> Iterator[Any]:
    wanted = np.array(sorted(chosen), dtype=np.int64)
    for batch in batches:
        if not batch.num_rows:
            continue
        identities = _identities(batch)
        numbers = (identities % np.uint64(buckets)).astype(np.int64)
        keep = np.isin(numbers, wanted)
        topics = pc.index_in(batch.column("topic"), pa.array(names)).to_numpy()
        partitions = batch.column("partition").to_numpy().astype(np.int64)
        places = (topics.astype(np.int64) << _PARTITION_BITS) | partitions
        offsets = batch.column("offset").to_numpy()
        columns = [numbers, places, offsets, identities.view(np.int64)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(side, pa.int32()), int(keep.sum())),
                *(pa.array(column[keep], pa.int64()) for column in columns),
            ],
            schema=_ROWS_SCHEMA,
        )


def _compare_bucket(rows: Any) -> Any:
    """A pyarrow.Table of one bucket, of all sides."""
    side = rows.column("side").to_numpy()
    identities = rows.column("identity").to_numpy().view(np.uint64)
    places, offsets = rows.column("place").to_numpy(), rows.column("offset").to_numpy()

    def of(number: int) -> Copies:
        chosen = side == number
        return Copies(identities[chosen], places[chosen], offsets[chosen]).in_order()

    found = compare_copies(of(WANTED), of(ALLOWED), of(COPIED))
    told = [
        (
            each.place,
            str(each.kind),
            len(each.offsets),
            json.dumps(ranges_of(each.offsets)[:RANGES_MAX]),
        )
        for each in found
    ]
    return pa.Table.from_batches([batch_of(told, _FOUND_SCHEMA)], _FOUND_SCHEMA)
