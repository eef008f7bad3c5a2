"""Looks at all partitions of the cluster: which have no leader, or replicas that are not in sync.

Thousands of partitions are looked at in turns, so that clients are served in between, and only
after something has changed.
"""

import asyncio
from typing import Final, NamedTuple

from msgspec.structs import replace

from moldau.control.cluster_service import ClusterService
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.metadata.image import Image
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.clock import Clock
from moldau.model.cluster_problems import Condition, Tally
from moldau.model.ids import BrokerId

NAMED_MAX: Final = 100
"""Partitions of each kind that are named; all are counted."""
_PARTITIONS_PER_TURN: Final = 200
_EVERY_SECONDS: Final = 10.0
"""A scan this old is renewed: this broker may see changes that nobody announces."""


class LeaderlessPartition(NamedTuple):
    topic: str
    partition: int


class LatePartition(NamedTuple):
    topic: str
    partition: int
    missing: list[int]


class Scan(NamedTuple):
    condition: Condition
    leaderless: list[LeaderlessPartition]
    under_replicated: list[LatePartition]
    version: int
    """Of the metadata."""


_Key = tuple[Image, int, frozenset[BrokerId]]


class ClusterScan:
    """The last scan, renewed when it is asked for."""

    def __init__(
        self, cluster: ClusterService, announcements: LeaderAnnouncements, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._announcements = announcements
        self._clock = clock
        self._turn = asyncio.Lock()
        self._known: Scan | None = None
        self._key: _Key | None = None
        self._scanned_at = 0.0

    async def current(self) -> Scan:
        async with self._turn:
            image, alive = self._cluster.image, self._cluster.alive
            changes = self._announcements.changes
            is_same = (
                self._key is not None
                and self._key[0] is image
                and self._key[1:] == (changes, alive)
                and self._clock.monotonic() - self._scanned_at < _EVERY_SECONDS
            )
            if self._known is None or not is_same:
                self._known = await self._scan(image, alive)
                self._key = (image, changes, alive)
                self._scanned_at = self._clock.monotonic()
            controller = self._cluster.controller_id
            if controller != self._known.condition.controller:
                self._known = _with_controller(self._known, controller)
            return self._known

    async def _scan(self, image: Image, alive: frozenset[BrokerId]) -> Scan:
        tally = Tally()
        leaderless: list[LeaderlessPartition] = []
        late: list[LatePartition] = []
        done = 0
        # What users made comes first: not all may be named.
        for topic in sorted(image.topics.values(), key=lambda topic: (topic.internal, topic.name)):
            tally.topics += 1
            for at in range(0, len(topic.partitions), _PARTITIONS_PER_TURN):
                some = topic.partitions[at : at + _PARTITIONS_PER_TURN]
                known = self._cluster.leaders_and_in_sync(topic, some)
                for partition, (leader, in_sync) in zip(some, known, strict=True):
                    broker = leader.broker if leader.broker in alive else NO_LEADER_ID
                    # A leader reports a dead broker as in sync for some seconds more.
                    there = alive.intersection(in_sync).union(partition.adding)
                    missing: list[int] = []
                    if not there.issuperset(partition.replicas):
                        missing = sorted(set(partition.replicas) - there)
                        if len(late) < NAMED_MAX:
                            late.append(LatePartition(topic.name, partition.index, missing))
                    if broker == NO_LEADER_ID and len(leaderless) < NAMED_MAX:
                        leaderless.append(LeaderlessPartition(topic.name, partition.index))
                    tally.add(topic.name, broker, partition.replicas, missing)
                done += len(some)
                if done >= _PARTITIONS_PER_TURN:
                    done = 0
                    await asyncio.sleep(0)
        down = sorted(image.brokers.keys() - alive)
        condition = tally.condition(controller=self._cluster.controller_id, down=down)
        return Scan(condition, leaderless, late, image.version)


def _with_controller(scan: Scan, controller: int) -> Scan:
    return scan._replace(condition=replace(scan.condition, controller=controller))
