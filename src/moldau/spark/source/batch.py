"""Responsible for a batch read of topics: planned once, by offsets, then read in tasks."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from moldau.spark.hints import tells_hints
from moldau.spark.source.cluster import (
    NO_OFFSET,
    Cluster,
    ending_offsets,
    places_of,
    starting_offsets,
)
from moldau.spark.source.planning import (
    OffsetRange,
    narrowed,
    shared_out,
    split_ranges,
    time_first_ms,
)
from moldau.spark.source.read_options import ReadOptions, parse_read_options

TASK_OFFSETS_MIN: Final = 1000
"""Fewer offsets than that share a task with others, unless options say how many tasks there are."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RangePartition(InputPartition):
    """What Spark hands to a task."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__("; ".join(map(str, ranges)))
        self.ranges = ranges


def tasks_for(options: ReadOptions, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
    """The ranges in as many tasks as asked for, else small ones together."""
    split = split_ranges(
        ranges,
        partitions_min=options.partitions_min,
        records_max=options.records_per_partition_max,
    )
    is_asked = options.partitions_min is not None or options.records_per_partition_max is not None
    shared = shared_out(split, offsets_min=1 if is_asked else TASK_OFFSETS_MIN)
    return [RangePartition(found) for found in shared]


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._filters: list[Filter] = []

    @tells_hints
    def partitions(self) -> list[InputPartition]:
        # Spark would make one task of an empty list, with nothing to read.
        return tasks_for(self._options, plan(self._options, self._filters)) or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)


class NarrowingBatchReader(BatchReader):
    """The same, with filters of the query that say which offsets need not be read at all.

    A class of its own, since Spark refuses to read from one that has `pushFilters` unless
    spark.sql.python.filterPushdown.enabled is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._filters = filters
        # All of them are given back: Spark checks each row once more.
        return filters


@tells_hints
def batch_reader(options: Mapping[str, str]) -> BatchReader:
    parsed = parse_read_options(options, streaming=False)
    # Spark asks for filters in a process of its own, which it starts only if that is enabled.
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_asked = _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER
    return NarrowingBatchReader(parsed) if is_asked else BatchReader(parsed)


def plan(options: ReadOptions, filters: Iterable[Filter] = ()) -> list[OffsetRange]:
    """What is read. Asks the brokers."""
    with closing(Cluster(options)) as cluster:
        topics = cluster.topics()
        places = places_of(topics)
        ends = ending_offsets(options, cluster, places)
        starts = starting_offsets(options, cluster, places)
        ranges = [
            OffsetRange(
                topic=place.topic,
                partition=place.partition,
                start=starts[place],
                end=ends[place],
                topic_id=topics[place.topic].id,
            )
            for place in places
        ]
        found, moment = narrowed(ranges, filters), time_first_ms(filters)
        if moment is None:
            return found
        firsts = cluster.offsets({planned.place: moment for planned in found})
        # No offset: nothing is as young as that. What comes later is not part of this batch.
        return [
            replace(planned, start=max(planned.start, firsts[planned.place]))
            for planned in found
            if firsts[planned.place] != NO_OFFSET
        ]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    """In a task. What it imports is needed nowhere else."""
    from moldau.spark.source.reading import read_ranges

    return read_ranges(options, partition.ranges if isinstance(partition, RangePartition) else ())
