"""What happens in the cluster is said in plain words, in order, and in few lines."""

import asyncio
import logging
from typing import Any, cast

import pytest
from handler_calls import FakeCluster, LoopClock, brokers, image, topic
from msgspec.structs import replace

from harness.virtual_loop import run_virtually
from moldau.control.cluster_events import ClusterEvents
from moldau.control.cluster_scan import NAMED_MAX, ClusterScan
from moldau.control.event_watch import EventWatch
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.metadata.image import Broker, BrokerState, Image, Topic
from moldau.model.ids import BrokerId, PartitionIndex

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


class World:
    """Broker 1 of three, and what it knows of the cluster."""

    def __init__(self, *topics: Topic) -> None:
        self.cluster = cast(Any, FakeCluster(image(brokers(1, 2, 3), *topics)))
        self.cluster.controller_id = 1
        for each in topics:
            self.lead(each.name, 1)
        self.announcements = LeaderAnnouncements(
            me=ONE,
            session=1,
            caller=cast(Any, None),
            peers=list,
        )
        self.clock = cast(Any, LoopClock())
        self.events = ClusterEvents(lambda: 7)
        self.scan = ClusterScan(self.cluster, self.announcements, self.clock)
        self.watch = EventWatch(
            me=ONE,
            clock=self.clock,
            cluster=self.cluster,
            scan=self.scan,
            announcements=self.announcements,
            events=self.events,
        )
        self.read = 0

    def lead(self, name: str, broker: int, *, synced: tuple[int, ...] = (1, 2, 3)) -> None:
        """All partitions of a topic."""
        for partition in self.cluster.image.topics[name].partitions:
            self.cluster.lead(name, partition.index, broker, 1)
            self.cluster.synced[name, partition.index] = synced

    def elect(self, name: str, index: int, leader: BrokerId) -> None:
        found = self.cluster.image.topics[name]
        self.announcements.on_elected((found.topic_id, PartitionIndex(index)), leader)

    def changed(self, **fields: Any) -> None:
        self.cluster.image = replace(
            self.cluster.image, version=self.cluster.image.version + 1, **fields
        )
        self.announcements.changes += 1

    def with_topics(self, *topics: Topic) -> None:
        made = image({}, *topics)
        self.changed(topics=made.topics, topics_by_id=made.topics_by_id)
        for each in topics:
            self.lead(each.name, 1)

    async def told(self, looks: int = 1) -> list[str]:
        """What is said by so many looks, the oldest first."""
        for _ in range(looks):
            await self.watch.look()
        found = self.events.after(self.read)
        self.read = self.events.last_id
        return [each.text for each in reversed(found)]


async def begun(*topics: Topic) -> World:
    world = World(*topics)
    assert await world.told(3) == ["broker 1 is the controller"]
    return world


def told_of(*lines: str) -> list[str]:
    return list(lines)


def test_a_dead_broker_is_said_with_what_it_costs_and_that_all_is_well_after_it():
    async def run() -> None:
        world = await begun(topic("orders", [1, 2, 3], [1, 2, 3], [1, 2, 3]))
        world.cluster.alive = frozenset({1, 2})
        world.elect("orders", 0, TWO)
        world.elect("orders", 2, TWO)
        world.elect("orders", 1, ONE)
        assert await world.told(3) == told_of(
            "broker 3 is not alive",
            "partition 1 of orders has a new leader: broker 1",
            "2 partitions of orders (0, 2) have a new leader: broker 2",
            "3 partitions under-replicated",
        )
        assert await world.told(3) == []
        world.cluster.alive = frozenset({1, 2, 3})
        assert await world.told(2) == told_of(
            "broker 3 is alive again", "all replicas are in sync again"
        )

    run_virtually(run())


def test_partitions_without_a_leader_are_counted_until_they_have_one():
    async def run() -> None:
        world = await begun(topic("orders", [1, 2, 3], [1, 2, 3]))
        world.lead("orders", 3)
        world.cluster.alive = frozenset({1, 2})
        assert "2 partitions without a leader" in await world.told(2)
        world.lead("orders", 1)
        world.announcements.changes += 1
        assert await world.told(2) == ["all partitions have a leader again"]

    run_virtually(run())


def test_what_passes_at_once_is_not_said():
    """While a leader changes, its in-sync replicas are not known for a moment."""

    async def run() -> None:
        world = await begun(topic("orders", [1, 2, 3]))
        world.lead("orders", 1, synced=(1,))
        world.announcements.changes += 1
        assert await world.told() == []
        world.lead("orders", 1)
        world.announcements.changes += 1
        assert await world.told(3) == []

    run_virtually(run())


def test_elections_of_many_topics_are_a_few_lines():
    async def run() -> None:
        names = [f"t{number:02}" for number in range(30)]
        world = await begun(*(topic(name, [1, 2, 3], [1, 2, 3]) for name in names))
        for name in names:
            world.elect(name, 0, TWO)
            world.elect(name, 1, TWO if name < "t10" else THREE)
        assert await world.told(2) == told_of(
            "40 partitions of 30 topics have a new leader: broker 2",
            "20 partitions of 20 topics have a new leader: broker 3",
        )
        assert all(each.topic is None for each in world.events.after(0))

    run_virtually(run())


def test_a_topic_with_many_partitions_names_the_first():
    async def run() -> None:
        world = await begun(topic("wide", *([1, 2, 3] for _ in range(30))))
        for index in range(30):
            world.elect("wide", index, TWO)
        (line,) = await world.told(2)
        assert line == (
            "30 partitions of wide (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more) have a new leader: "
            "broker 2"
        )
        assert world.events.after(0)[0].topic == "wide"

    run_virtually(run())


def test_topics_that_come_and_go():
    async def run() -> None:
        world = await begun(topic("a", [1, 2, 3]))
        world.with_topics(topic("b", [1], [1]))
        assert await world.told() == told_of(
            "topic a was deleted", "topic b was created, with 2 partitions"
        )
        world.with_topics(*(topic(f"t{number}", [1]) for number in range(20)))
        assert await world.told() == ["topic b was deleted", "20 topics were created"]
        world.with_topics()
        assert await world.told() == ["20 topics were deleted"]

    run_virtually(run())


def test_brokers_that_join_drain_and_leave():
    async def run() -> None:
        world = await begun()
        known = brokers(1, 2, 3, 4)
        world.changed(brokers=known)
        # It joined a moment ago, and is not connected yet.
        assert await world.told(2) == ["broker 4 joined the cluster"]
        world.cluster.alive = frozenset(known)
        world.changed(brokers=with_state(known, BrokerState.DRAINING))
        assert await world.told() == ["broker 4 is draining: its replicas move to other brokers"]
        world.changed(brokers=known)
        assert await world.told() == ["broker 4 is no longer draining"]
        world.changed(brokers=brokers(1, 2, 3))
        assert await world.told() == ["broker 4 left the cluster"]

    run_virtually(run())


def with_state(known: dict[BrokerId, Broker], state: BrokerState) -> dict[BrokerId, Broker]:
    return {**known, BrokerId(4): replace(known[BrokerId(4)], state=state)}


def test_a_broker_that_restarts_between_two_looks_is_said_to_have_restarted():
    async def run() -> None:
        world = await begun()
        known = brokers(1, 2, 3)
        world.changed(brokers={**known, TWO: replace(known[TWO], epoch=9)})
        assert await world.told() == ["broker 2 was restarted"]

    run_virtually(run())


def test_a_broker_that_was_never_seen_is_said_after_a_while():
    async def run() -> None:
        world = World()
        world.cluster.alive = frozenset({1, 2})
        now = [0.0]
        world.clock.monotonic = lambda: now[0]
        assert await world.told() == ["broker 1 is the controller"]
        assert await world.told() == []
        now[0] = 6.0
        assert await world.told() == ["broker 3 is not alive"]

    run_virtually(run())


def test_a_controller_that_is_lost_and_elected():
    async def run() -> None:
        world = await begun()
        world.cluster.controller_id = -1
        assert await world.told() == ["there is no controller"]
        world.cluster.controller_id = 2
        assert await world.told() == ["broker 2 is the controller"]

    run_virtually(run())


def test_a_scan_names_some_partitions_and_counts_all():
    async def run() -> None:
        count = NAMED_MAX + 50
        world = World(topic("wide", *([1, 2, 3] for _ in range(count))))
        world.cluster.alive = frozenset({1, 2})
        found = await world.scan.current()
        assert found.condition.under_replicated == count
        assert len(found.under_replicated) == NAMED_MAX
        assert found.under_replicated[0] == ("wide", 0, [3])
        assert found.condition.down == (3,)
        # The same until something changes.
        world.lead("wide", 3)
        assert await world.scan.current() is found
        world.announcements.changes += 1
        assert (await world.scan.current()).condition.leaderless == count
        world.cluster.controller_id = 2
        assert (await world.scan.current()).condition.controller == 2

    run_virtually(run())


def test_an_image_without_topics_is_healthy():
    async def run() -> None:
        world = World()
        world.cluster.image = Image(cluster_id="c", brokers=brokers(1))
        assert (await world.scan.current()).condition.partitions == 0

    run_virtually(run())


def test_a_look_that_fails_is_logged_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        world = await begun(topic("orders", [1, 2, 3]))

        async def fail() -> None:
            raise RuntimeError("a defect")

        watching = asyncio.create_task(world.watch.run())
        with monkeypatch.context() as patch:
            patch.setattr(world.scan, "current", fail)
            await asyncio.sleep(25)
        failed = [each for each in caplog.records if each.exc_info is not None]
        # Not one each time that it looks, or a defect fills the log.
        assert 1 <= len(failed) <= 3
        assert not watching.done()
        world.cluster.alive = frozenset({1, 2})
        await asyncio.sleep(25)
        assert any(each.text == "broker 3 is not alive" for each in world.events.after(0))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with caplog.at_level(logging.ERROR):
        run_virtually(run())
