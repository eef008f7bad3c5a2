"""Live views: what they may follow, whom they ask and how often, and who is named as silent."""

import asyncio
from collections import Counter, defaultdict
from typing import Any, cast

import msgspec
import pytest
from handler_calls import FakeCluster, LoopClock, brokers, image, topic
from search_asks import LIVE

from harness.virtual_loop import run_virtually
from moldau.api.search import live
from moldau.api.search.live import LiveFeed, LiveViews, LiveWanted
from moldau.data.search.follow import PARTITIONS_MAX, Followed, FollowPartitions, FollowWanted
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
_decode = msgspec.msgpack.Decoder(FollowWanted).decode
OLD = RefusedError(ErrorCode.UNSUPPORTED_VERSION, "unknown peer method 51")
LOST = RefusedError(ErrorCode.NETWORK_EXCEPTION, "the link is lost")


class World:
    """Broker 1 without partitions; the others lead them, and say how many messages there are."""

    def __init__(self, *leaders: int) -> None:
        self.cluster = FakeCluster(image(brokers(1, 2, 3)))
        self.grow(*leaders)
        self.changes = 0
        self.lookups = 0
        self.ends: Counter[int] = Counter()
        self.failing: dict[BrokerId, RefusedError] = {}
        self.asked: defaultdict[BrokerId, list[float]] = defaultdict(list)
        self.views = LiveViews(
            me=ONE,
            clock=cast(Any, LoopClock()),
            leader_of=self._leader_of,
            leaders_version=lambda: (id(self.topic), self.changes),
            topic_of=lambda name: self.topic,
            follow=cast(FollowPartitions, None),
            caller=self,
        )

    def grow(self, *leaders: int) -> None:
        self.topic = topic("t", *([each] for each in leaders))
        self.lead(*leaders)

    def lead(self, *leaders: int) -> None:
        for index, leader in enumerate(leaders):
            self.cluster.lead("t", index, leader, 1)

    def _leader_of(self, found: Topic, index: int) -> Leader:
        self.lookups += 1
        return self.cluster.leader_of(found, index)

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.asked[peer].append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        if peer in self.failing:
            raise self.failing[peer]
        wanted = _decode(payload)
        found = self._news(wanted)
        if not found:
            await asyncio.sleep(wanted.wait_ms / 1000)
            found = self._news(wanted)
        return msgspec.msgpack.encode(found)

    def _news(self, wanted: FollowWanted) -> list[Followed]:
        return [
            Followed(index, self.ends[index], [], 0 if at is None else self.ends[index] - at)
            for index, at in wanted.positions
            if at is None or at < self.ends[index]
        ]

    def feed(self, wanted: LiveWanted = LIVE) -> LiveFeed:
        return self.views.feed(self.topic, wanted)

    async def begun(self) -> LiveFeed:
        feed = self.feed()
        await feed.begin()
        return feed


def named(*partitions: int) -> LiveWanted:
    return msgspec.structs.replace(LIVE, partitions=list(partitions))


def test_a_view_follows_so_many_partitions_and_says_how_to_choose_some() -> None:
    async def run() -> None:
        world = World(*[2] * (PARTITIONS_MAX + 1))
        with pytest.raises(RefusedError, match="at most 256") as refused:
            world.feed()
        assert "partition=" in refused.value.hint
        world.feed(named(*range(PARTITIONS_MAX)))
        world = World(*[2] * PARTITIONS_MAX)
        feed = await world.begun()
        # It cannot show all of them any more: it says so, and does not leave out the new one.
        world.grow(*[2] * (PARTITIONS_MAX + 1))
        with pytest.raises(RefusedError, match="257 partitions"):
            await feed.next(10)
        feed.close()

    run_virtually(run())


def test_all_views_of_a_broker_follow_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FOLLOWED_MAX", 5)

    async def run() -> None:
        world = World(2, 3)
        first, second = await world.begun(), await world.begun()
        third = world.feed()
        with pytest.raises(RefusedError, match="limit of 5") as refused:
            await third.begin()
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        third.close()
        # New partitions count, too.
        world.grow(2, 3, 2)
        await first.next(1)
        with pytest.raises(RefusedError):
            await world.feed(named(0)).begin()
        for feed in (first, second):
            feed.close()
            feed.close()
        assert world.views.followed == 0
        (await world.begun()).close()

    run_virtually(run())


def test_leaders_are_looked_up_after_a_change_and_not_for_each_message() -> None:
    async def run() -> None:
        world = World(*[2, 3] * 100)
        feed = await world.begun()
        world.lookups = 0
        for number in range(100):
            world.ends[number] += 1
            await feed.next(0.1)
        # In ten seconds and more, each partition about once a second.
        assert world.lookups <= 200 * 15
        while await feed.next(5):
            pass
        world.lead(*[3] * 200)
        world.changes += 1
        world.asked.clear()
        world.ends[0] += 1
        batch = await feed.next(5)
        assert batch is not None
        assert batch.skipped == 1
        assert THREE in world.asked
        feed.close()

    run_virtually(run())


def test_partitions_that_do_not_respond_are_named_until_they_do() -> None:
    async def run() -> None:
        world = World(2, 3, 3, NO_LEADER_ID)
        world.failing[THREE] = LOST
        feed = await world.begun()
        batch = await feed.next(10)
        assert batch is not None
        assert batch.silent is not None
        assert [(each.broker, each.partitions) for each in batch.silent] == [
            (NO_LEADER_ID, (3,)),
            (THREE, (1, 2)),
        ]
        assert batch.silent[1].reason == "the link is lost"
        # The others go on, and it is said once.
        world.ends[0] = 7
        batch = await feed.next(10)
        assert batch is not None
        assert (batch.skipped, batch.silent) == (7, None)
        assert await feed.next(10) is None
        world.failing.clear()
        world.lead(2, 3, 3, 2)
        world.changes += 1
        batches = [await feed.next(3), await feed.next(3)]
        said = [batch.silent for batch in batches if batch is not None]
        assert said[-1] == []
        # A quiet topic is not silent.
        assert await feed.next(60) is None
        feed.close()

    run_virtually(run())


def test_a_leader_of_an_older_version_is_named_at_once_and_asked_rarely() -> None:
    async def run() -> None:
        world = World(2, 3)
        world.failing[THREE] = OLD
        loop = asyncio.get_running_loop()
        began = loop.time()
        feed = await world.begun()
        assert loop.time() - began < 1
        batch = await feed.next(10)
        assert batch is not None
        assert batch.silent is not None
        ((broker, partitions, reason),) = batch.silent
        assert (broker, partitions) == (THREE, (1,))
        assert "older version" in reason
        assert loop.time() - began < 2
        while loop.time() - began < 60:
            await feed.next(5)
        assert len(world.asked[THREE]) < 10
        feed.close()

    run_virtually(run())


def test_a_leader_that_fails_is_asked_more_and_more_rarely() -> None:
    async def run() -> None:
        world = World(2)
        world.failing[TWO] = LOST
        feed = await world.begun()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 60:
            await feed.next(5)
        assert len(world.asked[TWO]) < 60
        world.failing.clear()
        # What it was found at is where it begins.
        world.ends[0] = 5
        await feed.next(10)
        world.ends[0] = 6
        batch = await feed.next(10)
        assert batch is not None
        assert batch.skipped == 1
        feed.close()

    run_virtually(run())
