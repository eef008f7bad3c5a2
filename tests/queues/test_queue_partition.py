"""One queue at work: it tells no more than it knows, and holds up nobody else on its broker."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from msgspec.structs import replace
from queue_world import LIMITS, QueueWorld, ack, settle, values_of, why_refused

from moldau.leases.commands import Ack
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.queues.reader import QueueReader
from moldau.queues.types import DONE, ErrorReason, QueueRefusedError
from moldau.testing.waiting import until


async def turns_during(work: Awaitable[Any]) -> int:
    """How often others had their turn while it was under way."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0)
            count += 1

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    before = count
    try:
        await work
        return count - before
    finally:
        ticking.cancel()


# ---- what is told


async def test_an_ack_that_is_being_written_when_leadership_ends_is_not_called_undone() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    taken = await world.take()
    world.ledger.gate.clear()
    first = asyncio.create_task(settle(world, taken[:1], Ack))
    await until(lambda: world.ledger.waiting == 1, "a write waits")
    second = asyncio.create_task(settle(world, taken[1:], Ack))
    await asyncio.sleep(0)
    changing = asyncio.create_task(world.change_leader())
    # One may be done, and is: the other cannot be.
    assert [verdict.reason for verdict in await first] == [ErrorReason.UNAVAILABLE]
    assert [verdict.reason for verdict in await second] == [ErrorReason.NOT_LEADER]
    world.ledger.gate.set()
    await changing
    verdicts = await settle(world, taken, Ack)
    assert [each.reason for each in verdicts] == [ErrorReason.SETTLED, None]


async def test_nothing_is_taken_from_a_topic_that_was_recreated_until_the_group_has_it() -> None:
    """Or its acks would be refused, one attempt after the other."""
    world = await QueueWorld.make()
    await world.send(b"a")
    world.groups["g"] = replace(world.group, topics=())
    assert await why_refused(world) is ErrorReason.UNKNOWN_TOPIC
    world.groups["g"] = world.group
    await ack(world, await world.take())


async def test_new_messages_in_place_of_a_lost_tail_are_delivered_also_if_a_queue_starts_late() -> (
    None
):
    world = await QueueWorld.make(starts_at_end=True)
    await world.take()
    await world.send(b"old 0", b"old 1")
    await ack(world, await world.take())
    log = world.logs["t", 0]
    replica = world.replicas["t", 0]
    replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log.truncate(log.index_of(Offset(0)))
    await world.change_leader()
    assert world.replicas["t", 0].epoch > replica.epoch
    # Before anybody asks for the queue.
    await world.send(b"new 0", b"new 1", b"new 2")
    taken = [*await world.take(), *await world.take()]
    assert values_of(taken) == [b"new 0", b"new 1", b"new 2"]


# ---- who is held up


async def test_a_long_stretch_without_messages_delays_no_other_request() -> None:
    limits = replace(LIMITS, read_bytes=1)
    world = await QueueWorld.make(limits=limits)
    for number in range(100):
        await world.send_in_transaction(b"x", producer=1, sequence=number)
    await world.end_transaction(1, is_commit=False)
    await world.send(b"a")
    assert await turns_during(world.poll()) >= 100
    assert await world.take() == []
    assert max(len(records) for records in world.ledger.writes) <= 2


async def test_an_inspection_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, read_bytes=1, cache_bytes_max=0)
    world = await QueueWorld.make(limits=limits)
    topic = world.topics["t"]
    await world.send(*[b"x"] * 50)
    for _ in range(50):
        await world.send(b"y")
    assert len(await world.take(50)) == 50
    reads = 0
    real = QueueReader._read

    async def read(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*arguments)

    monkeypatch.setattr(QueueReader, "_read", read)
    # A batch is taken apart once, and between two of them others have their turn.
    assert await turns_during(world.host.peek(world.group, topic, 100)) >= 50
    assert reads == 51


async def test_tokens_that_are_worth_nothing_delay_no_other_request() -> None:
    limits = replace(LIMITS, tokens_per_round_max=100)
    world = await QueueWorld.make(limits=limits)
    await world.send(b"a")
    taken = await world.take()
    await ack(world, taken)
    tokens = [taken[0].token] * 100
    calls = [world.host.settle(world.group, "w", tokens, Ack) for _ in range(30)]
    assert await turns_during(asyncio.gather(*calls)) >= 30


async def test_no_more_tokens_wait_than_there_is_room_for() -> None:
    limits = replace(LIMITS, tokens_waiting_max=250)
    world = await QueueWorld.make(limits=limits)
    await world.send(b"a", b"b")
    taken = await world.take()
    world.ledger.gate.clear()
    first = asyncio.create_task(settle(world, taken[:1], Ack))
    await until(lambda: world.ledger.waiting == 1, "a write waits")
    calls = [asyncio.create_task(settle(world, taken[1:] * 100, Ack)) for _ in range(4)]
    await asyncio.sleep(0)
    world.ledger.gate.set()
    assert await first == [DONE]
    reasons = [{verdict.reason for verdict in await call} for call in calls]
    assert reasons == [
        {None, ErrorReason.SETTLED},
        {ErrorReason.SETTLED},
        {ErrorReason.BUSY},
        {ErrorReason.BUSY},
    ]
    assert (await settle(world, taken[1:] * 200, Ack))[0].reason is ErrorReason.SETTLED


async def test_of_large_messages_that_come_again_no_more_are_read_than_an_answer_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(LIMITS, poll_bytes_max=5_000, ahead_bytes_max=5_000, cache_bytes_max=0)
    world = await QueueWorld.make(limits=limits, visibility_ms=1_000)
    for number in range(40):
        await world.send(bytes([number]) * 1_000)
    taken = [one for _ in range(20) for one in await world.take(40)]
    assert len(taken) == 40
    world.pass_time(1_000)
    reads = 0
    real = QueueReader._read

    async def read(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*arguments)

    monkeypatch.setattr(QueueReader, "_read", read)
    again = await world.take(40)
    assert values_of(again) == values_of(taken)[: len(again)]
    assert 2 <= len(again) <= 5
    assert reads <= 10
    rest = [one for _ in range(40) for one in await world.take(40)]
    assert values_of(again + rest) == values_of(taken)


async def test_queues_that_are_used_no_more_let_go_of_messages_that_others_need_room_for() -> None:
    limits = replace(LIMITS, held_bytes_max=60_000)
    world = await QueueWorld.make(partitions=3, limits=limits)
    for partition in range(3):
        await world.send(*[bytes([partition]) * 1_000 for _ in range(20)], partition=partition)
    taken = []
    for partition in range(3):
        taken += await world.take(5, partitions=[partition])
    readers = [queue.reader for queue in world.host._queues.values()]
    await until(
        lambda: sum(reader.held_bytes for reader in readers) <= 60_000, "the readers hold less"
    )
    assert readers[0].held_bytes == 0
    assert readers[2].held_bytes > 0
    # Nothing is lost by that.
    await ack(world, taken)
    rest = [one for _ in range(9) for one in await world.take(10)]
    assert len({(one.partition, one.record.offset) for one in rest}) == len(rest) == 45


async def test_a_poll_of_a_queue_that_is_gone_for_good_ends() -> None:
    world = await QueueWorld.make()
    await world.take()
    waiting = asyncio.create_task(world.poll(wait=20))
    await until(lambda: world.host.parked_count == 1, "so many polls wait")
    del world.groups["g"]
    with pytest.raises(QueueRefusedError) as caught:
        await waiting
    assert caught.value.reason is ErrorReason.UNKNOWN_GROUP
