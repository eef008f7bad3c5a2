"""Brokers are sampled once for all watchers, only while there are some, and with bounded waits."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import FakeCluster, LoopClock, brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api.overview.sample import BrokerSample, encode_sample
from moldau.api.overview.sampler import ANSWER_SECONDS_MAX, EVERY_SECONDS, OverviewSampler
from moldau.control.cluster_events import ClusterEvents
from moldau.control.cluster_scan import ClusterScan
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod

ONE = BrokerId(1)


class World:
    """Broker 1 of three."""

    def __init__(self) -> None:
        self.clock = cast(Any, LoopClock())
        known = image(brokers(1, 2, 3), topic("orders", [1, 2, 3]))
        self.cluster = cast(Any, FakeCluster(known))
        self.cluster.controller_id = 1
        self.cluster.lead("orders", 0, 1, 1)
        self.cluster.synced["orders", 0] = (1, 2, 3)
        self.events = ClusterEvents(self.clock.wall_ms)
        self.asked: list[int] = []
        self.stuck: set[int] = set()
        self.count = 0
        announcements: Any = SimpleNamespace(changes=0)
        collector: Any = self
        caller: Any = self
        watch: Any = None
        self.sampler = OverviewSampler(
            me=ONE,
            clock=self.clock,
            cluster=self.cluster,
            scan=ClusterScan(self.cluster, announcements, self.clock),
            events=self.events,
            watch=watch,
            collector=collector,
            caller=caller,
        )

    async def sample(self) -> BrokerSample:
        self.asked.append(1)
        self.count += 100
        return BrokerSample(
            at=self.clock.monotonic(), version="1", started_at_ms=1, records_in=self.count
        )

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        self.asked.append(peer)
        assert method == PeerMethod.BROKER_SAMPLE
        if peer in self.stuck:
            await asyncio.sleep(seconds)
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "it took too long")
        at = self.clock.monotonic()
        return encode_sample(BrokerSample(at=at, version="1", started_at_ms=peer))


def all_seen(name: str) -> bool:
    return True


def none_seen(name: str) -> bool:
    return False


def test_the_first_look_waits_for_a_sample_and_the_next_have_rates():
    async def run() -> None:
        world = World()
        first = await world.sampler.latest(all_seen)
        found = json.loads(first.json)
        assert [each["silent"] for each in found["brokers"]] == [False] * 3
        assert found["rates"]["records_in"] is None
        assert len(found["history"]["at_ms"]) == 1
        began = world.clock.monotonic()
        second = await world.sampler.after(first, all_seen)
        assert world.clock.monotonic() - began == pytest.approx(EVERY_SECONDS)
        found = json.loads(second.json)
        assert found["rates"]["records_in"] == 50
        assert found["history"] is None
        assert sorted(world.asked) == [1, 1, 2, 2, 3, 3]
        world.sampler.stop()

    run_virtually(run())


def test_all_watchers_share_one_task_and_one_encoding():
    async def run() -> None:
        world = World()
        first = await asyncio.gather(*(world.sampler.latest(all_seen) for _ in range(5)))
        assert len({id(each.json) for each in first}) == 1
        shown = await asyncio.gather(*(world.sampler.after(each, all_seen) for each in first))
        assert len({id(each.json) for each in shown}) == 1
        assert len(world.asked) == 6
        world.sampler.stop()

    run_virtually(run())


def test_a_broker_that_is_stuck_or_dead_holds_up_nobody():
    async def run() -> None:
        world = World()
        world.stuck = {2}
        world.cluster.alive = frozenset({1, 2})
        began = world.clock.monotonic()
        found = json.loads((await world.sampler.latest(all_seen)).json)
        assert world.clock.monotonic() - began == pytest.approx(ANSWER_SECONDS_MAX)
        assert [each["silent"] for each in found["brokers"]] == [False, True, True]
        assert 3 not in world.asked
        world.sampler.stop()

    run_virtually(run())


def test_sampling_ends_a_while_after_the_last_watcher_and_begins_again():
    async def run() -> None:
        world = World()
        await world.sampler.latest(all_seen)
        await asyncio.sleep(90)
        done = len(world.asked)
        await asyncio.sleep(90)
        assert len(world.asked) == done
        # What was seen before the pause makes no rates.
        found = json.loads((await world.sampler.latest(all_seen)).json)
        assert found["rates"]["records_in"] is None
        assert len(world.asked) == done + 3
        world.sampler.stop()

    run_virtually(run())


def test_each_event_comes_once_also_to_one_who_missed_some():
    async def run() -> None:
        world = World()
        world.events.add("broker_lost", "before", broker=2)
        first = await world.sampler.latest(all_seen)
        assert [each["text"] for each in json.loads(first.json)["events"]] == ["before"]
        world.events.add("broker_back", "during", broker=2)
        second = await world.sampler.after(first, all_seen)
        assert [each["text"] for each in json.loads(second.json)["events"]] == ["during"]
        world.events.add("in_sync", "later")
        third = await world.sampler.after(second, all_seen)
        late = await world.sampler.after(first, all_seen)
        assert [each["text"] for each in json.loads(third.json)["events"]] == ["later"]
        assert [each["text"] for each in json.loads(late.json)["events"]] == ["later", "during"]
        world.sampler.stop()

    run_virtually(run())


def test_who_may_not_see_a_topic_gets_an_encoding_without_it():
    async def run() -> None:
        world = World()
        world.events.add("topic_created", "topic orders was created", topic="orders")
        mine = await world.sampler.latest(all_seen)
        theirs = await world.sampler.latest(none_seen)
        assert b"orders" in mine.json
        assert b"orders" not in theirs.json
        world.sampler.stop()

    run_virtually(run())


def test_a_stop_ends_the_wait_of_every_watcher():
    async def run() -> None:
        world = World()
        first = await world.sampler.latest(all_seen)
        waiting = [asyncio.ensure_future(world.sampler.after(first, all_seen)) for _ in range(3)]
        await asyncio.sleep(0.1)
        world.sampler.stop()
        for each in waiting:
            with pytest.raises(RefusedError, match="stopping"):
                await each
        with pytest.raises(RefusedError, match="stopping"):
            await world.sampler.after(first, all_seen)

    run_virtually(run())


def test_an_internal_error_is_logged_and_the_next_sample_is_made(caplog):
    async def run() -> None:
        world = World()
        good = world.sampler.collector.sample
        broken = True

        async def sample() -> BrokerSample:
            nonlocal broken
            if broken:
                broken = False
                raise ValueError("broken")
            return await good()

        world.sampler.collector.sample = sample  # type: ignore[method-assign]
        await world.sampler.latest(all_seen)
        world.sampler.stop()

    run_virtually(run())
    assert "the overview is missing" in caplog.text
