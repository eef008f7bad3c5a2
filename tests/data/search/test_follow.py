"""What leaders find for searches and live views, over real replicas: only what is committed, all
of it, and what is too much is counted."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fetch_world import World

from moldau.data.offsets import OffsetService
from moldau.data.partitions import Partitions
from moldau.data.search import filters, follow
from moldau.data.search import pieces as searching
from moldau.data.search.filters import JsonTerm, SearchFilter
from moldau.data.search.follow import Followed, FollowPartitions, FollowWanted
from moldau.data.search.pieces import SearchPieces
from moldau.data.search.types import Piece, PieceWanted, SearchWanted, Start
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.server.clock import SystemClock
from moldau.testing.waiting import until

encode = msgspec.msgpack.encode
pytestmark = pytest.mark.inprocess


class SearchWorld(World):
    """The same partitions, searched."""

    def __init__(self, reply_bytes_max: int) -> None:
        super().__init__(reply_bytes_max)
        partitions = cast(Partitions, self)
        clock = SystemClock()
        self.pieces = SearchPieces(
            clock=clock,
            partitions=partitions,
            fetch=self.service,
            offsets=OffsetService(partitions),
        )
        self.following = FollowPartitions(clock=clock, pieces=self.pieces)

    def lead(self, topic: str, partition: int) -> SimpleNamespace:
        hosted = self.get(topic, partition)
        if hosted is None:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        hosted.replica.check_leadership()
        return hosted

    @property
    def topic_id(self) -> bytes:
        return self.replicas["t", 0].topic_id

    async def search(self, *pieces: PieceWanted, **changes: Any) -> list[Piece]:
        wanted: dict[str, Any] = {
            "topic": "t",
            "topic_id": self.topic_id,
            "newest": True,
            "start": Start(),
            "wanted": SearchFilter(),
            "value_max": 100,
            "bytes_max": 1 << 20,
            "budget_ms": 1000,
            "pieces": list(pieces),
        }
        return await self.pieces.search(SearchWanted(**{**wanted, **changes}))

    async def follow(self, *positions: tuple[int, int | None], **changes: Any) -> list[Followed]:
        wanted: dict[str, Any] = {
            "topic": "t",
            "topic_id": self.topic_id,
            "wanted": SearchFilter(),
            "value_max": 100,
            "limit": 100,
            "bytes_max": 1 << 20,
            "wait_ms": 2000,
            "positions": list(positions),
        }
        return await self.following.follow(FollowWanted(**{**wanted, **changes}))


async def made() -> SearchWorld:
    world = await SearchWorld.make()
    assert isinstance(world, SearchWorld)
    return world


async def test_a_piece_is_searched_in_both_directions() -> None:
    world = await made()
    for _ in range(30):
        await world.append(0)
    (newest,) = await world.search(PieceWanted(0, None, 0, None, 20))
    assert [hit.offset for hit in newest.hits] == list(range(29, 9, -1))
    assert (newest.begin, newest.position, newest.stop) == (30, 10, 0)
    (rest,) = await world.search(PieceWanted(0, 10, 0, newest.reached, 20))
    assert [hit.offset for hit in rest.hits] == list(range(9, -1, -1))
    assert rest.position == 0
    (oldest,) = await world.search(PieceWanted(0, None, 0, None, 100), newest=False)
    assert [hit.offset for hit in oldest.hits] == list(range(30))
    assert (oldest.begin, oldest.position, oldest.stop) == (0, 30, 30)
    # Another start.
    (one,) = await world.search(PieceWanted(0, None, 0, None, 9), start=Start(offset=3))
    assert [hit.offset for hit in one.hits] == [3, 2, 1, 0]


async def test_an_open_transaction_hides_what_follows() -> None:
    world = await made()
    await world.append(0)
    world.begin(0)
    world.propose(0)
    replica = world.replicas["t", 0]
    await until(lambda: replica.high_watermark == 3, "all is committed")
    (piece,) = await world.search(PieceWanted(0, None, 0, None, 9))
    assert [hit.offset for hit in piece.hits] == [0]
    (oldest,) = await world.search(PieceWanted(0, None, 0, None, 9), newest=False)
    assert oldest.stop == 1
    # Not even with a position that somebody made up.
    (beyond,) = await world.search(PieceWanted(0, 1 << 60, 0, None, 9))
    assert [hit.offset for hit in beyond.hits] == [0]


async def test_without_time_it_is_said_only_where_a_partition_begins() -> None:
    world = await made()
    for partition in (0, 1):
        await world.append(partition)
    first, second = await world.search(
        PieceWanted(0, None, 0, None, 9), PieceWanted(1, None, 0, None, 9), budget_ms=0
    )
    assert len(first.hits) == 1
    assert (second.hits, second.position) == ([], 1)


async def test_partitions_that_are_not_here_have_errors_of_their_own() -> None:
    world = await made()
    await world.append(0)
    here, gone = await world.search(
        PieceWanted(0, None, 0, None, 9), PieceWanted(7, None, 0, None, 9)
    )
    assert not here.error
    assert gone.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (other,) = await world.search(PieceWanted(0, None, 0, None, 9), topic_id=b"x" * 16)
    assert other.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_retention_removed_is_counted() -> None:
    world = await made()
    for _ in range(10):
        await world.append(0)
    world.replicas["t", 0].log.delete_before(world.replicas["t", 0].log.start_offset + 4)  # type: ignore[arg-type]
    (newest,) = await world.search(PieceWanted(0, 8, 1, None, 99))
    assert ([hit.offset for hit in newest.hits], newest.gone) == ([7, 6, 5, 4], 3)
    (oldest,) = await world.search(PieceWanted(0, 2, 10, None, 99), newest=False)
    assert ([hit.offset for hit in oldest.hits], oldest.gone) == ([4, 5, 6, 7, 8, 9], 2)
    (followed,) = await world.follow((0, 1))
    assert (len(followed.hits), followed.skipped, followed.position) == (6, 3, 10)


async def test_there_is_a_limit_of_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await made()
    monkeypatch.setattr(searching, "SEARCHES_MAX", 0)
    with pytest.raises(RefusedError, match="limit of 0"):
        await world.search(PieceWanted(0, None, 0, None, 9))


async def test_who_follows_is_woken_by_what_is_committed() -> None:
    world = await made()
    await world.append(0)
    begun = await world.follow((0, None), (1, None))
    assert [(each.partition, each.position) for each in begun] == [(0, 1), (1, 0)]
    waiting = asyncio.create_task(world.follow((0, 1), (1, 0), wait_ms=60_000))
    await until(lambda: world.watchers == 2, "it waits")
    await world.append(1)
    (followed,) = await waiting
    assert (followed.partition, followed.position, len(followed.hits)) == (1, 1, 1)
    assert world.watchers == 0
    # Without anything new it returns, and without a wait at once.
    assert await world.follow((0, 1), wait_ms=1) == []
    assert (
        await world.following.follow(
            FollowWanted("t", world.topic_id, SearchFilter(), 1, 1, 1, 60_000, [(0, 1)]),
            may_wait=False,
        )
        == []
    )


async def test_what_is_too_much_is_counted_exactly() -> None:
    world = await made()
    for _ in range(40):
        await world.append(0)
        await world.append(1)
    found = await world.follow((0, 5), (1, 0), limit=20)
    assert [(each.partition, each.position) for each in found] == [(0, 40), (1, 40)]
    assert [(len(each.hits), each.skipped) for each in found] == [(10, 25), (10, 30)]
    # A filter leaves out what it looked at, and that is not counted.
    (none,) = await world.follow((0, 5), wanted=SearchFilter(key=b"nobody"))
    assert (none.hits, none.skipped, none.position) == ([], 0, 40)


async def test_a_few_messages_are_shown_however_busy_the_machine_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_SCAN_SECONDS", 0.0)
    world = await made()
    for _ in range(50):
        await world.append(0)
    (few,) = await world.follow((0, 45))
    assert (len(few.hits), few.skipped, few.position) == (5, 0, 50)
    (many,) = await world.follow((0, 0))
    assert 15 < len(many.hits) < 50
    assert len(many.hits) + many.skipped == 50


async def test_json_that_is_too_large_to_decode_counts_as_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "JSON_BYTES_MAX", 0)
    monkeypatch.setattr(JsonTerm, "needle", lambda _: b"")
    world = await made()
    for _ in range(3):
        await world.append(0)
    (followed,) = await world.follow((0, 1), wanted=SearchFilter(json=[JsonTerm(["a"], None)]))
    assert (followed.hits, followed.skipped, followed.position) == ([], 2, 3)


async def test_who_is_woken_looks_only_at_what_has_changed() -> None:
    world = await made()
    await world.append(0)
    await world.append(1)
    looked: list[int] = []
    lead = world.pieces.lead

    def counted(topic: str, topic_id: bytes, partition: int) -> Any:
        looked.append(partition)
        return lead(topic, topic_id, partition)

    world.pieces.lead = counted  # type: ignore[method-assign]
    waiting = asyncio.create_task(world.follow((0, 1), (1, 1), wait_ms=60_000))
    await until(lambda: world.watchers == 2, "it waits")
    assert looked == [0, 1]
    await world.append(1)
    await waiting
    assert 0 not in looked[2:]


async def test_a_request_that_waits_returns_when_a_leader_is_gone() -> None:
    world = await made()
    waiting = asyncio.create_task(world.follow((0, 0), (1, 0), wait_ms=60_000))
    await until(lambda: world.watchers == 2, "it waits")
    gone = world.replicas.pop(("t", 1))
    gone.close()
    (followed,) = await waiting
    assert (followed.partition, followed.error) == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.watchers == 0


async def test_requests_of_a_broker_are_bounded() -> None:
    world = await made()
    wanted = FollowWanted("t", world.topic_id, SearchFilter(), 1, 1, 1, 60_000, [(0, 0), (1, 0)])
    asking = [
        asyncio.create_task(world.following.on_request(BrokerId(2), encode(wanted)))
        for _ in range(follow.WAITS_MAX)
    ]
    await until(lambda: world.watchers == 2 * follow.WAITS_MAX, "they wait")
    # As many more return at once, and ask again.
    assert await world.following.on_request(BrokerId(2), encode(wanted)) == encode([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "REQUESTS_MAX", follow.WAITS_MAX)
        with pytest.raises(RefusedError, match="limit of 24"):
            await world.following.on_request(BrokerId(2), encode(wanted))
        # Those of other brokers count for themselves.
        other = asyncio.create_task(world.following.on_request(BrokerId(3), encode(wanted)))
        await until(lambda: world.watchers == 2 * follow.WAITS_MAX + 2, "it waits")
    await world.append(0)
    await asyncio.gather(*asking, other)
    many = [(index, 0) for index in range(follow.PARTITIONS_MAX + 1)]
    with pytest.raises(RefusedError, match="257 partitions"):
        await world.following.on_request(
            BrokerId(2), encode(msgspec.structs.replace(wanted, positions=many))
        )
