"""Fetch sessions: what they answer, what they read for it, and that it is what full fetches get."""

import random

import pytest
from fetch_world import World
from memory_log import MemoryLog
from session_client import SessionClient

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.log.disk_log import read_slice
from moldau.log.interface import LogConfig
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import Offset, ProducerEpoch, ProducerId
from moldau.records.control import EndMarker
from moldau.testing.waiting import until

PARTITIONS = 6


async def world_of(partitions: int = PARTITIONS) -> World:
    world = await World.make()
    for index in range(2, partitions):
        await open_partition(world, index)
    return world


async def open_partition(world: World, index: int) -> None:
    await world.open(index, MemoryLog(LogConfig(flush=FlushPolicy.NEVER)))


def reads_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that are read from now on."""
    looks: list[int] = []
    read = world.service._read_one

    def noting(request: PartitionFetch, left: int, is_first: bool) -> PartitionFetchResult:
        looks.append(request.partition)
        return read(request, left, is_first)

    monkeypatch.setattr(world.service, "_read_one", noting)
    return looks


async def idle_client(world: World, partitions: int = PARTITIONS) -> SessionClient:
    """One that has seen all there is."""
    client = SessionClient(world)
    client.wanted = {
        index: world.replicas["t", index].high_watermark for index in range(partitions)
    }
    client.open()
    return client


async def test_a_fetch_reads_what_changed_and_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of()
    client = await idle_client(world)
    looks = reads_of(world, monkeypatch)
    client.go_on()
    assert (looks, client.answers[-1]) == ([], {})
    size = await world.append(3)
    client.go_on()
    assert looks == [3]
    assert {at: result.size for at, result in client.answers[-1].items()} == {3: size}
    # Until the client says that it has it, it gets it again: its response may have been lost.
    client.go_on()
    assert client.answers[-1][3].size == size
    client.consume()
    looks.clear()
    client.go_on()
    client.go_on()
    assert looks == [3]
    assert client.answers[-2:] == [{}, {}]


async def test_a_commit_wakes_a_fetch_that_waits_and_nothing_else_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_of()
    client = await idle_client(world)
    looks = reads_of(world, monkeypatch)
    assert client.go_on(wait_ms_max=60_000) is not None
    assert looks == []
    await world.append(5)
    assert set(looks) == {5}
    assert list(client.answers[-1]) == [5]
    assert world.service.parked_count == 0


async def test_what_is_ready_costs_commits_nothing() -> None:
    world = await world_of()
    await idle_client(world)
    await world.append(1)
    assert world.watchers == PARTITIONS - 1
    await world.append(1)
    assert world.watchers == PARTITIONS - 1


async def test_small_commits_of_several_partitions_add_up() -> None:
    world = await world_of()
    client = await idle_client(world)
    size = await world.append(0)
    assert client.go_on(bytes_min=3 * size, wait_ms_max=60_000) is not None
    await world.append(4)
    assert len(client.answers) == 1
    await world.append(0)
    assert {at: result.size for at, result in client.answers[-1].items()} == {0: 2 * size, 4: size}
    assert world.watchers == PARTITIONS - 2


async def test_an_error_is_repeated_until_it_is_gone() -> None:
    world = await world_of()
    client = await idle_client(world)
    gone = world.replicas.pop(("t", 2))
    assert client.go_on(wait_ms_max=60_000) is not None
    gone.drop()
    for _ in range(2):
        assert client.answers[-1][2].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert list(client.answers[-1]) == [2]
        client.go_on(wait_ms_max=60_000)
    await open_partition(world, 2)
    client.go_on()
    # As it was before the error, and yet listed: the client sees that the error is gone.
    assert (client.answers[-1][2].error, client.answers[-1][2].size) == (ErrorCode.NONE, 0)
    client.go_on()
    assert client.answers[-1] == {}


async def test_a_new_log_start_is_listed_and_an_offset_below_it_is_out_of_range() -> None:
    world = await world_of()
    for _ in range(3):
        await world.append(0)
    client = await idle_client(world)
    world.replicas["t", 0].trim(Offset(2), lambda _: None)
    await until(lambda: world.replicas["t", 0].log.start_offset == 2, "it is trimmed")
    client.go_on()
    assert client.answers[-1][0].log_start_offset == 2
    client.wanted[0] = 1
    client.go_on()
    assert client.answers[-1][0].error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_partitions_take_turns_where_a_response_has_no_room_for_all() -> None:
    world = await world_of()
    for index in range(PARTITIONS):
        for _ in range(3):
            size = await world.append(index, 1000)
    client = await idle_client(world)
    client.wanted = dict.fromkeys(range(PARTITIONS), 0)
    client.partition_bytes_max = size
    served = []
    for _ in range(3 * PARTITIONS):
        client.go_on(bytes_max=size)
        found = [at for at, result in client.answers[-1].items() if result.size]
        served += found
        client.consume()
    assert [sorted(served[at : at + PARTITIONS]) for at in (0, 6, 12)] == [[*range(6)]] * 3


async def test_only_what_there_is_room_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of()
    for index in range(PARTITIONS):
        size = await world.append(index, 1000)
    client = await idle_client(world)
    client.wanted = dict.fromkeys(range(PARTITIONS), 0)
    looks = reads_of(world, monkeypatch)
    client.go_on(bytes_max=2 * size)
    assert looks == [0, 1]


async def test_a_fetch_that_is_full_does_not_wait_for_more() -> None:
    world = await world_of()
    client = await idle_client(world)
    size = await world.append(0, 1000)
    assert client.go_on(bytes_min=10 * size, bytes_max=size, wait_ms_max=60_000) is None


async def test_another_isolation_looks_at_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of()
    client = await idle_client(world)
    world.begin(0)
    await until(lambda: world.replicas["t", 0].high_watermark == 1, "it is committed")
    client.go_on()
    assert client.answers[-1][0].size > 0
    client.reads_committed = True
    looks = reads_of(world, monkeypatch)
    client.go_on()
    assert (sorted(looks), client.answers[-1]) == ([*range(PARTITIONS)], {})


async def test_an_abandoned_fetch_is_not_answered_and_the_session_goes_on() -> None:
    world = await world_of()
    client = await idle_client(world)
    assert client.go_on(wait_ms_max=60_000) is not None
    client.sessions.resume(client, client.id, client.epoch, uses_ids=False).abandon()
    client.epoch += 1
    await world.append(1)
    assert (len(client.answers), world.service.parked_count) == (1, 0)
    client.go_on()
    assert list(client.answers[-1]) == [1]


async def test_a_session_that_is_closed_answers_who_waits_and_watches_nothing() -> None:
    world = await world_of()
    client = await idle_client(world)
    client.go_on(wait_ms_max=60_000)
    client.sessions.close(client)
    assert (len(client.answers), world.watchers) == (2, 0)
    with pytest.raises(RefusedError) as refused:
        client.go_on()
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# ---- against full fetches


def contents(result: PartitionFetchResult) -> tuple[object, ...]:
    data = b"" if result.data is None else read_slice(result.data)
    return (
        result.error,
        data,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
        None if result.aborted is None else list(result.aborted),
    )


class Model:
    """Random changes of a world, and what a client of full fetches would see of them."""

    def __init__(self, world: World, rng: random.Random, *, reads_committed: bool) -> None:
        self.world = world
        self.rng = rng
        self.client = SessionClient(world, reads_committed=reads_committed)
        self.seen: dict[int, tuple[int, int, int] | None] = {}
        self.transactions: dict[int, int] = {}

    def full(self) -> dict[int, PartitionFetchResult]:
        wanted = list(self.client.wanted)
        results, _, _ = self.world.service.read(self.client.requests(wanted), 1 << 24)
        return dict(zip(wanted, results, strict=True))

    def note(self, answer: dict[int, PartitionFetchResult]) -> None:
        for index, result in answer.items():
            state = (result.high_watermark, result.last_stable_offset, result.log_start_offset)
            self.seen[index] = state if result.error is ErrorCode.NONE else None

    def check(self) -> None:
        """After a fetch without limits: the session lists what a full fetch says that is new."""
        full, answer = self.full(), self.client.answers[-1]
        for index in self.seen.keys() - full.keys():
            del self.seen[index]
        for index, result in full.items():
            state = (result.high_watermark, result.last_stable_offset, result.log_start_offset)
            is_news = result.size > 0 or result.error is not ErrorCode.NONE
            if is_news or self.seen.get(index) != state:
                assert contents(answer[index]) == contents(result), index
            else:
                assert index not in answer
        self.note(answer)

    async def change(self, *, asks: bool = True) -> None:
        """Without `asks` it changes nothing that the client wants."""
        index = self.rng.randrange(PARTITIONS)
        replica = self.world.replicas.get(("t", index))
        if replica is None:
            await open_partition(self.world, index)
            return
        kind = self.rng.randrange(12 if asks else 9)
        if kind < 5:
            await self.world.append(index, self.rng.choice((10, 500)))
        elif kind < 7:
            self._transaction(index)
        elif kind == 7:
            target = self.rng.randint(replica.log.start_offset, replica.high_watermark)
            trimmed: list[ErrorCode] = []
            replica.trim(Offset(target), trimmed.append)
            await until(lambda: trimmed, "it is trimmed")
        elif kind == 8:
            del self.world.replicas["t", index]
            self.transactions.pop(index, None)
            replica.drop()
        elif kind == 9:
            self.client.wanted.pop(index, None)
        else:
            self.client.wanted[index] = self.rng.choice(
                (0, replica.high_watermark, replica.high_watermark + 5)
            )
        await until(lambda: self._is_settled(), "all is committed")

    def _transaction(self, index: int) -> None:
        replica = self.world.replicas["t", index]
        sequence = self.transactions.get(index, 0)
        if replica.producers.first_unstable is None:
            self.world.begin(sequence, partition=index)
            self.transactions[index] = sequence + 1
        else:
            marker = EndMarker(self.rng.random() < 0.5, 0)
            replica.write_marker(ProducerId(7), ProducerEpoch(0), marker, lambda _: None)

    def _is_settled(self) -> bool:
        return all(
            replica.high_watermark == replica.log.end_offset
            for replica in self.world.replicas.values()
        )


@pytest.mark.parametrize("reads_committed", [False, True])
@pytest.mark.parametrize("seed", range(20))
async def test_a_session_lists_what_full_fetches_say_that_is_new(
    seed: int, reads_committed: bool
) -> None:
    rng = random.Random(seed)
    world = await world_of()
    model = Model(world, rng, reads_committed=reads_committed)
    client = model.client
    client.wanted = dict.fromkeys(range(PARTITIONS), 0)
    client.open()
    model.note(client.answers[-1])
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            await model.change()
        if not client.wanted:
            client.wanted[0] = 0
        if rng.random() < 0.5:
            client.consume()
        before = len(client.answers)
        parked = client.go_on(wait_ms_max=rng.choice((0, 60_000)))
        for _ in range(20):
            if len(client.answers) > before:
                break
            await model.change(asks=False)
        else:
            assert parked is not None
            parked.complete()
        model.check()


@pytest.mark.parametrize("seed", range(10))
async def test_with_little_room_a_session_still_gets_every_record_once(seed: int) -> None:
    rng = random.Random(seed)
    world = await world_of()
    client = SessionClient(world, partition_bytes_max=700)
    client.wanted = dict.fromkeys(range(PARTITIONS), 0)
    client.open()
    client.consume()
    appended = 0
    for _ in range(80):
        await world.append(rng.randrange(PARTITIONS), rng.choice((10, 300, 900)))
        appended += 1
        if rng.random() < 0.5:
            client.go_on(bytes_max=rng.choice((1, 500, 2000)))
            client.consume()
    for _ in range(appended):
        client.go_on(bytes_max=500)
        client.consume()
    ends = {index: world.replicas["t", index].high_watermark for index in range(PARTITIONS)}
    assert client.wanted == ends
    assert sum(ends.values()) == appended
