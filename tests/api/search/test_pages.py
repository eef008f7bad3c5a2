"""A search that stops and goes on finds what one in a single run finds: all, once, in order."""

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from effort import seeds
from msgspec.structs import replace
from search_asks import SEARCH, stays
from search_world import Expected, StoredLeaders, StoredPartition, merged

from moldau.api.search.pages import Search, SearchFound, TopicSearch
from moldau.data.search.filters import JsonTerm, SearchFilter
from moldau.data.search.types import Piece, Start
from moldau.model.errors import ErrorCode, RefusedError
from moldau.testing.replicas import ManualClock

FILTERS = (
    SearchFilter(),
    SearchFilter(markers=True),
    SearchFilter(key=b"a"),
    SearchFilter(contains=b"needle"),
    SearchFilter(headers=[(b"h", None)]),
    SearchFilter(json=[JsonTerm(["a", "b", "1"], "2")]),
    SearchFilter(contains=b"nowhere"),
)


def topic(partitions: int = 3, topic_id: bytes = b"0123456789abcdef") -> Any:
    return SimpleNamespace(name="t", topic_id=topic_id, partitions=[None] * partitions)


def search(**changes: Any) -> Search:
    return replace(SEARCH, **{"limit": 10, "value_max": 1 << 16, **changes})


class World:
    def __init__(self, seed: int, partitions: int = 3) -> None:
        self.rng = random.Random(seed)
        self.partitions = [StoredPartition() for _ in range(partitions)]
        for partition in self.partitions:
            partition.grow(self.rng, self.rng.randint(0, 12))
        self.clock = ManualClock()
        self.leaders = StoredLeaders(self.partitions, self.rng, self.clock)
        self.service = TopicSearch(clock=self.clock, leaders=cast(Any, self.leaders))

    async def page(self, wanted: Search) -> SearchFound:
        return await self.service.page(topic(len(self.partitions)), wanted, stays)


@pytest.mark.parametrize("seed", seeds(40))
async def test_pages_are_the_parts_of_one_sequence(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    for wanted in FILTERS:
        for newest in (True, False):
            ends = [partition.end for partition in world.partitions]
            starts = [partition.start for partition in world.partitions]
            expected = merged(world.partitions, wanted, ends, newest=newest)
            found: list[Expected] = []
            searched = 0
            ranges: dict[int, list[tuple[int, int]]] = {}
            cursor = None
            left = sum(ends) - sum(starts)
            while True:
                limit = rng.choice((1, 2, 7, 100))
                asked = search(newest=newest, wanted=wanted, limit=limit, cursor=cursor)
                page = await world.page(asked)
                assert len(page.hits) <= limit
                found += [Expected(partition, hit.offset) for partition, hit in page.hits]
                searched += page.records
                assert page.left == left - page.records
                left = page.left
                for partition, first, end in page.ranges:
                    ranges.setdefault(partition, []).append((first, end))
                cursor = page.cursor
                # New messages are not a part of it.
                if rng.random() < 0.2:
                    rng.choice(world.partitions).grow(rng, 1)
                if cursor is None:
                    break
            assert found == expected
            assert searched == sum(ends) - sum(starts)
            for partition, spans in ranges.items():
                ordered = sorted(spans)
                assert ordered == (spans[::-1] if newest else spans)
                assert ordered[0][0] == starts[partition]
                assert ordered[-1][1] == ends[partition]
                assert all(a[1] == b[0] for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize("seed", seeds(10))
async def test_what_retention_removed_meanwhile_is_left_out_and_counted(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    newest = rng.random() < 0.5
    ends = [partition.end for partition in world.partitions]
    searched = gone = 0
    found: list[Expected] = []
    cursor = None
    while True:
        page = await world.page(search(newest=newest, limit=3, cursor=cursor))
        found += [Expected(partition, hit.offset) for partition, hit in page.hits]
        searched, gone = searched + page.records, gone + page.gone
        cursor = page.cursor
        if cursor is None:
            break
        for partition in world.partitions:
            if rng.random() < 0.3:
                partition.start = min(partition.end, partition.start + rng.randint(0, 5))
    # Oldest first, what is passed over is in the ranges; newest first, they end before it.
    assert searched + (gone if newest else 0) == sum(ends)
    assert len(found) == len(set(found))


async def test_newest_first_is_oldest_first_reversed_where_times_ascend() -> None:
    world = World(1, partitions=0)
    for number in range(3):
        partition = StoredPartition()
        partition.grow_evenly(step=number + 1)
        world.partitions.append(partition)
    both = []
    for newest in (True, False):
        found: list[tuple[int, int]] = []
        cursor = None
        while not found or cursor is not None:
            page = await world.page(search(newest=newest, limit=1000, cursor=cursor))
            found += [(partition, hit.offset) for partition, hit in page.hits]
            cursor = page.cursor
        both.append(found)
    assert both[0] == both[1][::-1]
    assert len(both[0]) == 60


@pytest.mark.parametrize(
    "change",
    [
        {"newest": False},
        {"wanted": SearchFilter(contains=b"x")},
        {"partitions": [0]},
        {"start": Start(offset=3)},
    ],
)
async def test_a_cursor_is_of_its_search_alone(change: dict[str, Any]) -> None:
    world = World(3)
    cursor = (await world.page(search(limit=1))).cursor
    assert cursor is not None
    await world.page(search(limit=5, cursor=cursor, value_max=3))
    with pytest.raises(RefusedError) as refused:
        await world.page(search(cursor=cursor, **change))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "other filters" in str(refused.value)
    assert refused.value.hint
    with pytest.raises(RefusedError, match="another topic"):
        await world.service.page(topic(3, b"x" * 16), search(cursor=cursor), stays)


async def test_a_partition_without_leader_is_waited_for_and_then_reported() -> None:
    world = World(5)
    asks = 0

    async def unavailable(topic: object, wanted: object, pieces: Any) -> list[Piece]:
        nonlocal asks
        asks += 1
        world.clock.steady += 0.06
        code = int(ErrorCode.LEADER_NOT_AVAILABLE)
        return [
            Piece(one.partition, 0, 0, 0, 0, None, [], 0, 0, [], 0, code, "no leader")
            for one in pieces
        ]

    world.leaders.search = unavailable  # type: ignore[method-assign]
    with pytest.raises(RefusedError) as refused:
        await world.page(search())
    assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "partition=" in refused.value.hint
    assert asks > 2


async def test_who_disconnects_ends_the_search() -> None:
    world = World(5)

    async def gone() -> bool:
        return True

    page = await world.service.page(topic(), search(), gone)
    assert page.hits == []
    assert page.records == 0


async def test_more_searches_than_the_limit_wait_and_then_are_refused() -> None:
    world = World(5)
    hold = asyncio.Event()

    async def slow(topic: object, wanted: object, pieces: object) -> list[Piece]:
        await hold.wait()
        return []

    world.leaders.search = slow  # type: ignore[method-assign]
    tasks = [asyncio.create_task(world.page(search())) for _ in range(5)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    (waiter,) = done
    assert isinstance(waiter.exception(), RefusedError)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
