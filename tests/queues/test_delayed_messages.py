"""Messages that are to be delivered much later: they hold up nothing, and come at their time."""

import asyncio

from queue_world import QueueWorld, ack, settle, stats, values_of

from moldau.leases.commands import Ack
from moldau.leases.delay_buckets import DAY_MS, HOUR_MS, MINUTE_MS
from moldau.model.queue_headers import DELIVER_AT_HEADER
from moldau.queues.types import ErrorReason, MessageState


async def send_later(world: QueueWorld, ahead_ms: int, *values: bytes) -> None:
    time = str(world.clock.wall + ahead_ms).encode()
    await world.send(*values, headers=[(DELIVER_AT_HEADER, time)])


async def test_any_number_of_messages_for_later_does_not_hold_up_what_is_due() -> None:
    world = await QueueWorld.make()
    for _ in range(40):
        await send_later(world, HOUR_MS + MINUTE_MS, *[b"later"] * 500)
    await world.send(b"now")
    assert values_of(await world.take()) == [b"now"]
    seen = await stats(world)
    assert (seen.ready, seen.leased, seen.delayed) == (0, 1, 20_000)


async def test_each_comes_once_and_not_before_its_time_under_any_leader() -> None:
    world = await QueueWorld.make()
    times = {b"days": 3 * DAY_MS, b"hours": 5 * HOUR_MS, b"minutes": 7 * MINUTE_MS}
    begin = world.clock.wall
    for value, ahead in times.items():
        await send_later(world, ahead, value)
    came: dict[bytes, int] = {}
    for step in range(3 * 24 * 4 + 2):
        if step % 50 == 7:
            await world.change_leader()
        for taken in await world.take():
            (value,) = values_of([taken])
            assert value not in came
            came[value] = world.clock.wall - begin
            await ack(world, [taken])
        world.pass_time(HOUR_MS // 4)
    assert came.keys() == times.keys()
    for value, ahead in times.items():
        assert ahead <= came[value] < ahead + HOUR_MS // 4


async def test_a_waiting_poll_gets_what_leaves_a_delay_bucket() -> None:
    world = await QueueWorld.make()
    await send_later(world, 2 * HOUR_MS, b"later")
    assert await world.take() == []
    world.pass_time(2 * HOUR_MS - 50)
    waiting = asyncio.create_task(world.poll(wait=30.0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    world.pass_time(50)
    assert values_of((await waiting).deliveries) == [b"later"]


async def test_a_late_ack_of_a_dead_letter_is_refused() -> None:
    world = await QueueWorld.make(attempts_max=1, visibility_ms=1_000)
    await world.send(b"job")
    taken = await world.take()
    world.pass_time(2_500)
    assert await world.take() == []
    (verdict,) = await settle(world, taken, Ack)
    assert verdict.reason is ErrorReason.EXPIRED
    assert "dead letter" in verdict.message


async def test_an_inspection_shows_what_is_in_delay_buckets() -> None:
    world = await QueueWorld.make()
    await send_later(world, 2 * DAY_MS, b"later")
    await world.send(b"now")
    assert values_of(await world.take()) == [b"now"]
    peeked = await world.host.peek(world.group, world.topics["t"], 10)
    assert [(each.record.value, each.state) for each in peeked] == [
        (b"now", MessageState.LEASED),
        (b"later", MessageState.DELAYED),
    ]
