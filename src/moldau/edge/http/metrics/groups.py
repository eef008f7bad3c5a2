"""Metrics of consumer groups that this broker coordinates: their states, and how far they lag."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

from moldau.api.lag_history import LagHistory
from moldau.api.lag_meter import LagMeter
from moldau.api.leader_ends import LeaderEnds
from moldau.api.metrics_view import MetricsView
from moldau.api.types import ListedGroup
from moldau.edge.http.metrics import limits
from moldau.edge.http.metrics.table import family
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.model.prometheus_text import MetricFamily

_LOOKUPS_MAX: Final = 10
"""Reads of the log in one scrape, for ages from before the first one."""


async def group_families(
    view: MetricsView, history: LagHistory, ends: LeaderEnds, *, has_detail: bool = False
) -> AsyncIterator[MetricFamily]:
    """Nothing while this broker loads one of their partitions."""
    listed: list[ListedGroup] = []
    counts: Counter[tuple[str, str]] = Counter()
    for error, some in view.groups_of_each():
        if error is not ErrorCode.NONE:
            return
        listed += some
        counts.update((str(group.group_type), str(group.state)) for group in some)
        await asyncio.sleep(0)
    groups = family("moldau_groups")
    for (kind, state), number in sorted(counts.items()):
        groups.add(number, {"type": kind, "state": state})
    yield groups
    listed.sort(key=lambda group: group.group_id)
    lags = _Lags(view, history, ends, has_detail=has_detail)
    left_out = await lags.measure(listed)
    ends.ask(view.extents)
    for one in lags.families:
        yield one
    yield family("moldau_groups_without_series", left_out)


class _Lags:
    """The lag of groups, one after another."""

    def __init__(
        self, view: MetricsView, history: LagHistory, ends: LeaderEnds, *, has_detail: bool
    ) -> None:
        self._view = view
        self._history = history
        self._meter = LagMeter(view.replicas, view.clock, history, ends)
        self._has_detail = has_detail
        self._done = 0
        self._records = family("moldau_group_lag")
        self._seconds = family("moldau_group_lag_seconds")
        self._unknown = family("moldau_group_lag_unknown_partitions")
        self._one_by_one = family("moldau_group_partition_lag")
        self._offsets = family("moldau_group_partition_offset")
        self.families = (
            *(self._records, self._seconds, self._unknown, self._one_by_one, self._offsets),
        )

    async def measure(self, listed: list[ListedGroup]) -> int:
        """Returns how many groups are left out."""
        series = self._records.samples
        self._history.begin(_LOOKUPS_MAX)
        left_out = 0
        try:
            for number, group in enumerate(listed):
                if number >= limits.GROUPS_MAX or len(series) >= limits.GROUP_SERIES_MAX:
                    left_out = len(listed) - number
                    break
                await self._add(group.group_id)
        finally:
            self._history.end()
        return left_out

    async def _add(self, group: str) -> None:
        await self._take_turn()
        offsets = dict(self._view.known_offsets(group).offsets)
        lag: Counter[str] = Counter()
        missing: Counter[str] = Counter()
        age: dict[str, float] = defaultdict(float)
        for partition, stored in offsets.items():
            await self._take_turn()
            topic = partition.topic
            mark, age_seconds = self._meter.position(partition, stored.offset)
            seconds = age_seconds or 0.0
            # 0 is added, so that a group without lag has a series, too.
            behind = 0 if mark is None else max(0, mark - stored.offset)
            lag[topic] += behind
            missing[topic] += mark is None
            age[topic] = max(age[topic], seconds)
            if self._has_detail and mark is not None:
                self._add_partition(group, partition, behind, stored.offset)
        for topic in islice(sorted(lag), limits.GROUP_SERIES_MAX - len(self._records.samples)):
            labels = {"group": group, "topic": topic}
            self._records.add(lag[topic], labels)
            self._seconds.add(round(age[topic], 3), labels)
            self._unknown.add(missing[topic], labels)

    async def _take_turn(self) -> None:
        """Call it for each item."""
        self._done += 1
        if self._done % limits.ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)

    def _add_partition(
        self, group: str, partition: TopicPartition, behind: int, committed: int
    ) -> None:
        if len(self._offsets.samples) < limits.DETAIL_PARTITIONS_MAX:
            topic, index = partition
            labels = {"group": group, "topic": topic, "partition": str(index)}
            self._one_by_one.add(behind, labels)
            self._offsets.add(committed, labels)
