"""The readers of Spark's data source API: they plan offset ranges, which tasks then read.

A batch read is planned once, a stream for each micro-batch. The reader of a stream lives in a
process beside the driver while the query runs. Its progress is in Spark's checkpoint, so it holds
no state that a restart would lose.
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
from moldau.spark.hints import shows_hints
from moldau.spark.source import planning, positions, source_client
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.source_client import SourceClient

log = logging.getLogger(__name__)

TASK_OFFSETS_MIN: Final = 1000
"""Smaller ranges share a task, unless options set the number of tasks."""
TOPICS_SECONDS_MAX: Final = 1.0
"""How long the list of topics and partitions is cached: micro-batches may be much shorter."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RangePartition(InputPartition):
    """The offset ranges of one task."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__("; ".join(map(str, ranges)))
        self.ranges = ranges


def tasks_for(options: ReadOptions, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
    """Divides the ranges into tasks: as the options say, otherwise small ranges share a task."""
    split = planning.split_ranges(
        ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
    )
    is_set = options.partitions_min is not None or options.records_per_partition_max is not None
    grouped = planning.group_small(split, offsets_min=1 if is_set else TASK_OFFSETS_MIN)
    return [RangePartition(found) for found in grouped]


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._filters: list[Filter] = []

    @shows_hints()
    def partitions(self) -> list[InputPartition]:
        # Spark makes one task of an empty list as well, but without a partition to read.
        return tasks_for(self._options, plan(self._options, self._filters)) or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)


class NarrowingBatchReader(BatchReader):
    """Skips offsets that the query's filters exclude.

    A separate class, since Spark rejects a reader with `pushFilters` unless
    spark.sql.python.filterPushdown.enabled is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._filters = filters
        # All are returned: Spark applies each filter to the rows again.
        return filters


@shows_hints()
def batch_reader(options: Mapping[str, str]) -> BatchReader:
    parsed = parse_read_options(options, streaming=False)
    # Spark pushes filters in a separate process, which it starts only if that is enabled.
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_enabled = _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER
    return NarrowingBatchReader(parsed) if is_enabled else BatchReader(parsed)


def plan(options: ReadOptions, filters: Sequence[Filter] = ()) -> list[OffsetRange]:
    """The offset ranges of a batch read. Sends requests to the brokers."""
    with closing(SourceClient(options)) as client:
        topics = client.topics()
        partitions = source_client.partitions_of(topics)
        ends = source_client.ending_offsets(options, client, partitions)
        starts = source_client.starting_offsets(options, client, partitions)
        ranges = planning.ranges_of(starts, ends, source_client.ids_of(topics))
        found, first_ms = planning.narrowed(ranges, filters), planning.time_first_ms(filters)
        if first_ms is None:
            return found
        firsts = client.offsets({planned.tp: first_ms for planned in found})
        # NO_OFFSET: no record is that recent. Later records are not part of this batch.
        return [
            replace(planned, start=max(planned.start, firsts[planned.tp]))
            for planned in found
            if firsts[planned.tp] != source_client.NO_OFFSET
        ]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    """Runs in a task; the late import is needed only there."""
    from moldau.spark.source.fetcher import read_ranges

    return read_ranges(options, partition.ranges if isinstance(partition, RangePartition) else ())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was written since the last micro-batch. Sent to tasks, which only `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = SourceClient(options)
        self._committed: source_client.Offsets = {}
        self._target: Positions | None = None
        """Where a query with trigger(availableNow=True) ends."""
        self._batch_at = time.monotonic()
        self._topics: dict[str, source_client.TopicView] | None = None
        self._topics_at = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._options,)

    # -- positions

    @shows_hints()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        topics = self._client.topics()
        partitions = source_client.partitions_of(topics)
        offsets = source_client.starting_offsets(self._options, self._client, partitions)
        if self._target is not None:
            # Records written since the end was chosen are not read, whatever the start.
            offsets = {p: min(at, self._target.offsets.get(p, at)) for p, at in offsets.items()}
        return Positions(offsets=offsets, ids=source_client.ids_of(topics), first=offsets).to_json()

    @shows_hints()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Positions.from_json(start)
        latest = self._target or self._read_latest()
        subscription = self._options.subscription
        names = subscription.assigned or subscription.topics or latest.topics()
        positions.check_checkpoint(begin, names, subscription.option)
        # Spark calls this when the previous batch is done; `commit` follows only if there is
        # something to read.
        self._commit_group(begin)
        most, least = self._options.offsets_per_trigger_max, self._options.offsets_per_trigger_min
        if isinstance(limit, ReadAllAvailable):
            most = least = None
        waited = time.monotonic() - self._batch_at
        if self._target is not None or waited >= self._options.trigger_delay_seconds_max:
            least = None
        fail = self._options.fail_on_data_loss
        end = positions.next_end(
            begin,
            latest,
            subscription=subscription,
            offsets_max=most,
            offsets_min=least,
            fail_on_data_loss=fail,
        )
        if end is begin:
            return start
        self._batch_at = time.monotonic()
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxOffsetsPerTrigger, which `latestOffset` applies; `Trigger.Once` has no limit."""
        return ReadMaxRows(self._options.offsets_per_trigger_max or sys.maxsize)

    @shows_hints()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._topics = None
        self._target = self._read_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the lag in the progress of the query."""
        try:
            return self._read_latest().to_json()
        except ClientError as error:
            log.warning("cannot report the lag, the latest offsets are unknown: %s", error)
            return None

    # -- micro-batches

    @shows_hints()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = positions.ranges_between(Positions.from_json(start), Positions.from_json(end))
        return tasks_for(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)

    @shows_hints()
    def commit(self, end: dict[str, Any]) -> None:
        self._commit_group(Positions.from_json(end))

    def stop(self) -> None:
        self._client.close()

    # -- requests to brokers

    def _read_latest(self) -> Positions:
        now = time.monotonic()
        if self._topics is None or now - self._topics_at >= TOPICS_SECONDS_MAX:
            # `next_end` detects missing topics that were read before.
            self._topics, self._topics_at = self._client.topics(missing_is_fine=True), now
        offsets = self._client.latest(source_client.partitions_of(self._topics))
        return Positions(offsets=offsets, ids=source_client.ids_of(self._topics))

    def _commit_group(self, reached: Positions) -> None:
        """A commit that fails with a retriable error is made up for by the next one."""
        group, now = self._options.group, dict(reached.offsets)
        if group is None or now == self._committed:
            return
        try:
            self._client.commit(group, now)
            self._committed = now
        except ClientError as error:
            is_expected = isinstance(error, RejectedError) or is_retriable(error)
            code = error.code if isinstance(error, RejectedError) else 0
            if not is_expected or code in source_client.GROUP_REFUSED:
                raise
            log.warning("cannot commit offsets of group %s, retrying next batch: %s", group, error)
