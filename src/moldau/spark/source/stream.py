"""Responsible for a streaming read of topics: where a batch ends, who reads what, whom to tell.

Lives in a process beside the driver for as long as the query runs. It keeps nothing that a restart
would miss: what was read stands in Spark's checkpoint.
"""

import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from moldau.client.errors import RejectedError, TimedOutError, UnreachableError
from moldau.spark.hints import tells_hints
from moldau.spark.source.batch import read_partition, tasks_for
from moldau.spark.source.cluster import (
    Cluster,
    TopicView,
    ids_of,
    places_of,
    starting_offsets,
)
from moldau.spark.source.commits import GroupCommits
from moldau.spark.source.positions import (
    Positions,
    check_checkpoint,
    next_end,
    ranges_between,
)
from moldau.spark.source.read_options import ReadOptions

log = logging.getLogger(__name__)

TOPICS_SECONDS_MAX: Final = 1.0
"""For so long topics and partitions are taken to be the same: batches may be much shorter."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was written since the last batch. Travels to tasks, which only `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._opened: Cluster | None = None
        self._commits: GroupCommits | None = None
        self._target: Positions | None = None
        """Where a query that reads what is available now ends."""
        self._batch_at = time.monotonic()
        self._topics: dict[str, TopicView] | None = None
        self._topics_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    # -- positions

    @tells_hints
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        cluster = self._cluster()
        topics = cluster.topics()
        offsets = starting_offsets(self._options, cluster, places_of(topics))
        if self._target is not None:
            # What came since the end was chosen is not read, whatever the start.
            ends = self._target.offsets
            offsets = {place: min(at, ends.get(place, at)) for place, at in offsets.items()}
        return Positions(offsets=offsets, ids=ids_of(topics), first=offsets).to_json()

    @tells_hints
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Positions.from_json(start)
        latest = self._target or self._read_latest()
        asked = self._options.subscription
        check_checkpoint(begin, asked.assigned or asked.topics or latest.topics(), asked.option)
        # Spark asks for the next end once the batch before is done: so far the query has come.
        # It says so by itself only when it has something to read.
        self._tell_group(begin)
        most, least = self._options.offsets_per_trigger_max, self._options.offsets_per_trigger_min
        if isinstance(limit, ReadAllAvailable):
            most = least = None
        waited = time.monotonic() - self._batch_at
        if self._target is not None or waited >= self._options.trigger_delay_seconds_max:
            least = None
        end = next_end(
            begin,
            latest,
            asked=asked,
            offsets_max=most,
            offsets_min=least,
            fail_on_data_loss=self._options.fail_on_data_loss,
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
        except (UnreachableError, TimedOutError, RejectedError) as error:
            log.warning("the latest offsets are not known: %s", error)
            return None

    # -- work

    @tells_hints
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = ranges_between(Positions.from_json(start), Positions.from_json(end))
        return tasks_for(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)

    @tells_hints
    def commit(self, end: dict[str, Any]) -> None:
        self._tell_group(Positions.from_json(end))

    def stop(self) -> None:
        opened, self._opened = self._opened, None
        self._commits = None
        if opened is not None:
            opened.close()

    # -- the cluster

    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self._options)
        return self._opened

    def _read_latest(self) -> Positions:
        cluster = self._cluster()
        now = time.monotonic()
        if self._topics is None or now - self._topics_at >= TOPICS_SECONDS_MAX:
            # What is missing is missed by whoever knows that it was there before.
            self._topics, self._topics_at = cluster.topics(missing_is_fine=True), now
        return Positions(offsets=cluster.latest(places_of(self._topics)), ids=ids_of(self._topics))

    def _tell_group(self, positions: Positions) -> None:
        if self._options.group is None:
            return
        if self._commits is None:
            self._commits = GroupCommits(self._cluster().client, self._options.group)
        self._commits.commit(positions)
