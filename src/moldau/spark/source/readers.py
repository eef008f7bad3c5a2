"""Responsible for reads of topics as Spark asks for them: a batch is planned once, by offsets, a
stream batch by batch, and tasks read ranges of offsets.

The reader of a stream lives in a process beside the driver for as long as the query runs. It keeps
nothing that a restart would miss: what was read stands in Spark's checkpoint.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from moldau.client.errors import ClientError, RejectedError
from moldau.client.retry import is_retriable
from moldau.spark.hints import tells_hints
from moldau.spark.source import planning, positions, source_client
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.source_client import SourceClient

log = logging.getLogger(__name__)

TASK_OFFSETS_MIN: Final = 1000
"""Fewer offsets than that share a task with others, unless options say how many tasks there are."""
TOPICS_SECONDS_MAX: Final = 1.0
"""For so long topics and partitions are taken to be the same: batches may be much shorter."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RangePartition(InputPartition):
    """What Spark hands to a task."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__("; ".join(map(str, ranges)))
        self.ranges = ranges


def tasks_for(options: ReadOptions, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
    """The ranges in as many tasks as asked for, else small ones together."""
    split = planning.split_ranges(
        ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
    )
    is_asked = options.partitions_min is not None or options.records_per_partition_max is not None
    shared = planning.shared_out(split, offsets_min=1 if is_asked else TASK_OFFSETS_MIN)
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


def plan(options: ReadOptions, filters: Sequence[Filter] = ()) -> list[OffsetRange]:
    """What is read. Asks the brokers."""
    with closing(SourceClient(options)) as brokers:
        topics = brokers.topics()
        places = source_client.places_of(topics)
        ends = source_client.ending_offsets(options, brokers, places)
        starts = source_client.starting_offsets(options, brokers, places)
        ranges = planning.ranges_of(starts, ends, source_client.ids_of(topics))
        found, moment = planning.narrowed(ranges, filters), planning.time_first_ms(filters)
        if moment is None:
            return found
        firsts = brokers.offsets({planned.place: moment for planned in found})
        # No offset: nothing is as young as that. What comes later is not part of this batch.
        return [
            replace(planned, start=max(planned.start, firsts[planned.place]))
            for planned in found
            if firsts[planned.place] != source_client.NO_OFFSET
        ]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    """In a task. What it imports is needed nowhere else."""
    from moldau.spark.source.fetcher import read_ranges

    return read_ranges(options, partition.ranges if isinstance(partition, RangePartition) else ())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was written since the last batch. Travels to tasks, which only `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._brokers = SourceClient(options)
        self._committed: source_client.Offsets = {}
        self._target: Positions | None = None
        """Where a query that reads what is available now ends."""
        self._batch_at = time.monotonic()
        self._topics: dict[str, source_client.TopicView] | None = None
        self._topics_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    # -- positions

    @tells_hints
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        topics = self._brokers.topics()
        offsets = source_client.starting_offsets(
            self._options, self._brokers, source_client.places_of(topics)
        )
        if self._target is not None:
            # What came since the end was chosen is not read, whatever the start.
            offsets = {p: min(at, self._target.offsets.get(p, at)) for p, at in offsets.items()}
        return Positions(offsets=offsets, ids=source_client.ids_of(topics), first=offsets).to_json()

    @tells_hints
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Positions.from_json(start)
        latest = self._target or self._read_latest()
        asked = self._options.subscription
        names = asked.assigned or asked.topics or latest.topics()
        positions.check_checkpoint(begin, names, asked.option)
        # Spark asks for the next end once the batch before is done: so far the query has come.
        # It says so by itself only when it has something to read.
        self._tell_group(begin)
        most, least = self._options.offsets_per_trigger_max, self._options.offsets_per_trigger_min
        if isinstance(limit, ReadAllAvailable):
            most = least = None
        waited = time.monotonic() - self._batch_at
        if self._target is not None or waited >= self._options.trigger_delay_seconds_max:
            least = None
        fail = self._options.fail_on_data_loss
        end = positions.next_end(
            begin, latest, asked=asked, offsets_max=most, offsets_min=least, fail_on_data_loss=fail
        )
        if end is begin:
            return start
        self._batch_at = time.monotonic()
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """That of the options, which `latestOffset` knows; `Trigger.Once` has none."""
        return ReadMaxRows(self._options.offsets_per_trigger_max or sys.maxsize)

    @tells_hints
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._topics = None
        self._target = self._read_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the progress of the query: what is left to read is what lies between."""
        try:
            return self._read_latest().to_json()
        except ClientError as error:
            log.warning("the latest offsets are not known: %s", error)
            return None

    # -- work

    @tells_hints
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = positions.ranges_between(Positions.from_json(start), Positions.from_json(end))
        return tasks_for(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)

    @tells_hints
    def commit(self, end: dict[str, Any]) -> None:
        self._tell_group(Positions.from_json(end))

    def stop(self) -> None:
        self._brokers.close()

    # -- the cluster

    def _read_latest(self) -> Positions:
        now = time.monotonic()
        if self._topics is None or now - self._topics_at >= TOPICS_SECONDS_MAX:
            # What is missing is missed by whoever knows that it was there before.
            self._topics, self._topics_at = self._brokers.topics(missing_is_fine=True), now
        offsets = self._brokers.latest(source_client.places_of(self._topics))
        return Positions(offsets=offsets, ids=source_client.ids_of(self._topics))

    def _tell_group(self, reached: Positions) -> None:
        """A commit that fails for a while harms nothing, and is made up for by the next."""
        group, now = self._options.group, dict(reached.offsets)
        if group is None or now == self._committed:
            return
        try:
            self._brokers.commit(group, now)
            self._committed = now
        except ClientError as error:
            is_refused = (
                isinstance(error, RejectedError) and error.code in source_client.GROUP_REFUSED
            )
            if is_refused or not (isinstance(error, RejectedError) or is_retriable(error)):
                raise
            log.warning("group %s hears of the progress with the next batch: %s", group, error)
