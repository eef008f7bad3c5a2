"""The lag of the groups that this broker coordinates, measured while somebody watches.

Measuring many groups takes a while, in turns; it is not begun again before ten times as long.
"""

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from moldau.api.asking import ask_each
from moldau.api.cluster_queries import ClusterQueries, PartitionExtent
from moldau.api.lag_history import LagHistory
from moldau.api.lag_meter import LagMeter
from moldau.api.leader_ends import REMOTE_PARTITIONS_MAX, LeaderEnds
from moldau.api.local_replicas import LocalReplicas
from moldau.api.overview.sample import LaggingGroupSample
from moldau.coordination.group_service import GroupService
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicPartition
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

LAGGING_MAX: Final = 20
_CALL_SECONDS_MAX: Final = 3.0
_POSITIONS_PER_TURN: Final = 200
_LOOKUPS_MAX: Final = 10
"""Reads of the log in one scan, for ages from before the first one."""
_LOOKUPS_OF_ONE_MAX: Final = 100
"""The same, when a person looks at some groups."""
_ASKING_MAX: Final = 8
"""Requests that wait for leaders, or for their turn."""
_EVERY_SECONDS: Final = 1.5
_WAIT_SECONDS: Final = 0.5
_SHARE_MAX: Final = 0.1
"""Of the time, for scans."""
_HISTORIES_MAX: Final = 20_000
_decode_names: Final = msgspec.msgpack.Decoder(list[str]).decode


class GroupLag(msgspec.Struct, frozen=True, array_like=True):
    """None: not known."""

    records: int | None
    seconds: float | None


_decode_lags: Final = msgspec.msgpack.Decoder(list[GroupLag]).decode


class LagTotals(NamedTuple):
    groups: int | None = None
    records: int | None = None
    lagging: tuple[LaggingGroupSample, ...] = ()


class PositionLag(NamedTuple):
    mark: int | None
    seconds: float | None


class _Leaders(NamedTuple):
    """What the leaders of partitions said, and whose did not respond."""

    known: Mapping[TopicPartition, PartitionExtent]
    silent: set[TopicPartition]


class GroupLags:
    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        groups: GroupService,
        replicas: LocalReplicas,
        queries: ClusterQueries,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._caller = caller
        self._clock = clock
        self._groups = groups
        self._replicas = replicas
        self._queries = queries
        self._history = LagHistory()
        self._ends = LeaderEnds()
        self._turn = asyncio.Lock()
        self._asking = 0
        self._done = 0
        self._totals = LagTotals()
        self._next_at = float("-inf")
        self._measuring: asyncio.Task[None] | None = None

    # ---- all groups

    async def totals(self) -> LagTotals:
        """Of all groups here; some seconds old, or more if there are very many."""
        if self._measuring is None and self._clock.monotonic() >= self._next_at:
            self._measuring = asyncio.get_running_loop().create_task(self._renew())
            self._measuring.add_done_callback(self._renewed)
        if self._measuring is not None:
            # The caller waits for other things, too: the next call gets the result.
            await asyncio.wait({self._measuring}, timeout=_WAIT_SECONDS)
        return self._totals

    async def _renew(self) -> None:
        async with self._turn:
            began = self._clock.monotonic()
            self._totals = await self._measure_all()
            took = self._clock.monotonic() - began
            self._next_at = began + max(_EVERY_SECONDS, took / _SHARE_MAX)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._measuring = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the lag of groups is missing", exc_info=error, extra=events.INTERNAL_ERROR())

    async def _measure_all(self) -> LagTotals:
        names: list[str] = []
        for error, some in self._groups.groups_of_each():
            if error is not ErrorCode.NONE:
                return LagTotals()
            names += [group.group_id for group in some]
            await asyncio.sleep(0)
        self._history.begin(_LOOKUPS_MAX)
        records = 0
        lagging: list[LaggingGroupSample] = []
        try:
            meter = LagMeter(self._replicas, self._clock, self._history, self._ends)
            for name in names:
                lag = await self._measure(meter, name)
                if lag.records:
                    records += lag.records
                    lagging.append(LaggingGroupSample(name, lag.records, lag.seconds))
        finally:
            self._history.end()
            self._ends.ask(self._queries.extents)
        most = heapq.nlargest(LAGGING_MAX, lagging, key=lambda one: one.records)
        return LagTotals(len(names), records, tuple(most))

    # ---- some groups

    async def by_coordinator(
        self, groups: Iterable[tuple[str, BrokerId]]
    ) -> Mapping[str, GroupLag]:
        """Asks the coordinator of each, all at once; without those that do not respond."""
        names: dict[BrokerId, list[str]] = defaultdict(list)
        for name, coordinator in groups:
            names[coordinator].append(name)
        replies = await ask_each(
            self._caller,
            PeerMethod.GROUP_LAGS,
            names,
            _decode_lags,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self.here,
        )
        return {
            name: lag
            for broker, reply in replies.items()
            for name, lag in zip(names[broker], reply, strict=False)
        }

    async def here(self, names: Sequence[str]) -> list[GroupLag]:
        """Of groups that this broker coordinates. Raises RefusedError."""
        with self._counted():
            leaders = await self._ask_leaders(await self._led_by_others(names))
            async with self._turn:
                meter = self._fresh_meter(leaders)
                return [await self._measure(meter, name, needs_all=True) for name in names]

    async def positions(self, name: str) -> dict[TopicPartition, PositionLag]:
        """Of each committed offset of a group that this broker coordinates. Raises RefusedError."""
        with self._counted():
            leaders = await self._ask_leaders(await self._led_by_others([name]))
            async with self._turn:
                meter = self._fresh_meter(leaders)
                found = {}
                for partition, stored in dict(self._groups.known_offsets(name).offsets).items():
                    found[partition] = PositionLag(*meter.position(partition, stored.offset))
                    await self._take_turn()
                return found

    async def of_topic(
        self, topic: str, groups: Mapping[str, Sequence[tuple[int, int]]]
    ) -> dict[str, float | None]:
        """How far groups are behind in one topic, by their partitions with committed offsets; None
        without any, or if it is not known. Raises RefusedError."""
        places = {
            TopicPartition(topic, PartitionIndex(index))
            for offsets in groups.values()
            for index, _ in offsets
        }
        led_by_others = {each for each in places if not self._replicas.is_leader(*each)}
        with self._counted():
            leaders = await self._ask_leaders(led_by_others)
            async with self._turn:
                meter = self._fresh_meter(leaders)
                found: dict[str, float | None] = {}
                for name, offsets in groups.items():
                    ages = []
                    for index, committed in offsets:
                        partition = TopicPartition(topic, PartitionIndex(index))
                        ages.append(meter.position(partition, committed)[1])
                        await self._take_turn()
                    known = [age for age in ages if age is not None]
                    is_known = known and (len(known) == len(ages) or max(known) > 0)
                    found[name] = round(max(known), 3) if is_known else None
                return found

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """A peer asks for the lag of groups."""
        return msgspec.msgpack.encode(await self.here(decode_request(_decode_names, payload)))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """One who asks waits for leaders and for its turn; nobody stops that when he has gone."""
        if self._asking >= _ASKING_MAX:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"broker {self._me} measures the lag of groups for {_ASKING_MAX} requests: retry",
            )
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    async def _led_by_others(self, names: Iterable[str]) -> set[TopicPartition]:
        """Of what these groups consume."""
        remote: set[TopicPartition] = set()
        for name in names:
            offsets = self._groups.known_offsets(name).offsets
            remote.update(each for each in offsets if not self._replicas.is_leader(*each))
            await self._take_turn()
            if len(remote) > REMOTE_PARTITIONS_MAX:
                break
        return remote

    async def _ask_leaders(self, remote: Collection[TopicPartition]) -> _Leaders:
        """Without the turn: one that hangs holds up no other request."""
        known = await self._queries.extents(remote) if remote else {}
        return _Leaders(known, {each for each in remote if each not in known})

    def _fresh_meter(self, leaders: _Leaders) -> LagMeter:
        """Only in turn."""
        self._history.begin(_LOOKUPS_OF_ONE_MAX)
        if len(self._history) > _HISTORIES_MAX:
            # Nobody watches: without scans, nothing else forgets them.
            self._history.end()
        # A later scan must not see less.
        self._ends.learn(leaders.known)
        ends = LeaderEnds(leaders.known)
        return LagMeter(self._replicas, self._clock, self._history, ends, leaders.silent)

    async def _measure(self, meter: LagMeter, name: str, *, needs_all: bool = False) -> GroupLag:
        records, seconds, is_known = 0, 0.0, True
        is_age_known = True
        known = self._groups.known_offsets(name)
        if known.error is not ErrorCode.NONE:
            # Another broker coordinates it now, or this one is loading it.
            return GroupLag(None, None)
        for partition, stored in dict(known.offsets).items():
            mark, age = meter.position(partition, stored.offset)
            if mark is None:
                is_known = False
            else:
                records += max(0, mark - stored.offset)
            if age is None:
                is_age_known = False
            else:
                seconds = max(seconds, age)
            await self._take_turn()
        age_known = round(seconds, 3) if is_age_known or seconds else None
        return GroupLag(records if is_known or not needs_all else None, age_known)

    async def _take_turn(self) -> None:
        """Call it for each position."""
        self._done += 1
        if self._done % _POSITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
