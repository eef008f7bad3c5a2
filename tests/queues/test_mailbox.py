"""Polls that wait: what wakes them, who comes first, and how many may."""

import asyncio

from msgspec.structs import replace
from queue_world import LIMITS, QueueWorld, ack, settle, values_of, why_refused

from moldau.leases.commands import Nack
from moldau.log.interface import LogRead
from moldau.model.ids import Offset
from moldau.queues.types import Delivery, ErrorReason
from moldau.testing.waiting import until


async def test_a_poll_waits_for_a_message_and_a_commit_wakes_it() -> None:
    world = await QueueWorld.make(partitions=2)
    poll = asyncio.create_task(world.take(wait=30))
    await until(lambda: world.host.parked_count == 1, "so many polls wait")
    await world.send(b"a", partition=1)
    assert values_of(await poll) == [b"a"]


async def test_a_poll_that_waits_for_nothing_ends_empty() -> None:
    world = await QueueWorld.make()
    assert await world.take(wait=0.01) == []


async def test_a_hundred_waiting_workers_share_what_comes() -> None:
    world = await QueueWorld.make()
    polls = [
        asyncio.create_task(world.take(100, member=f"w{number}", wait=30)) for number in range(100)
    ]
    await until(lambda: world.host.parked_count == 100, "so many polls wait")
    await world.send(*[b"%d" % number for number in range(100)])
    taken = await asyncio.gather(*polls)
    assert [len(some) for some in taken] == [1] * 100
    assert sorted(int(values_of(some)[0]) for some in taken) == list(range(100))
    # Few writes, not one for each.
    assert len(world.ledger.writes) <= 5


async def test_workers_who_want_more_than_there_is_get_the_same_and_else_what_they_want() -> None:
    world = await QueueWorld.make()
    polls = [asyncio.create_task(world.take(10, member=f"w{n}", wait=30)) for n in range(4)]
    await until(lambda: world.host.parked_count == 4, "so many polls wait")
    await world.send(*[b"x"] * 12)
    assert [len(await poll) for poll in polls] == [3, 3, 3, 3]
    polls = [asyncio.create_task(world.take(n, member=f"w{n}", wait=30)) for n in (1, 10, 2)]
    await until(lambda: world.host.parked_count == 3, "so many polls wait")
    await world.send(*[b"x"] * 13)
    assert [len(await poll) for poll in polls] == [1, 10, 2]


async def test_a_message_wakes_no_more_than_the_one_who_waits_longest() -> None:
    world = await QueueWorld.make()
    polls = [asyncio.create_task(world.take(wait=30, member=f"w{n}")) for n in range(3)]
    await until(lambda: world.host.parked_count == 3, "so many polls wait")
    for number in range(3):
        await world.send(b"%d" % number)
        assert values_of(await polls[number]) == [b"%d" % number]
        assert [poll.done() for poll in polls] == [n <= number for n in range(3)]


async def test_a_parked_poll_is_woken_when_a_lease_ends_and_when_a_delay_is_over() -> None:
    world = await QueueWorld.make(visibility_ms=1_000, backoff_ms=50)
    await world.send(b"a")
    taken = await world.take()
    poll = asyncio.create_task(world.take(wait=30, member="other"))
    await asyncio.sleep(0.01)
    world.pass_time(1_000)
    (again,) = await poll
    assert (again.attempt, again.record) == (2, taken[0].record)
    await settle(world, [again], Nack, "other")
    poll = asyncio.create_task(world.take(wait=30))
    await asyncio.sleep(0.02)
    assert not poll.done()
    world.pass_time(100)
    assert [each.attempt for each in await poll] == [3]


async def test_a_message_with_a_time_comes_then_and_one_with_a_bad_time_at_once() -> None:
    world = await QueueWorld.make()
    for value in (b"soon", b"-1", b"", None, b"1_0", b"9" * 30):
        await world.send(value or b"none", headers=[("moldau-deliver-at", value)])
    later = str(world.clock.wall + 500).encode()
    await world.send(b"later", headers=[("other", None), ("moldau-deliver-at", later)])
    await world.send(b"now", headers=[("moldau-deliver-at", b"0")])
    assert len(await world.take(20)) == 7
    poll = asyncio.create_task(world.take(wait=30))
    await asyncio.sleep(0.02)
    assert not poll.done()
    world.pass_time(500)
    assert values_of(await poll) == [b"later"]


async def test_a_full_queue_says_so_and_an_ack_makes_room_for_who_waits() -> None:
    world = await QueueWorld.make()
    for _ in range(9):
        await world.send(*[b"x"] * 500)
    taken: list[Delivery] = []
    while some := await world.take(1_000):
        taken += some
    polled = await world.poll(1)
    assert (len(taken), polled.deliveries, polled.is_full) == (4_000, [], True)
    poll = asyncio.create_task(world.poll(10, wait=30))
    late = await world.poll(10, wait=0.01)
    assert (late.deliveries, late.is_full, poll.done()) == ([], True, False)
    await ack(world, taken[:3])
    assert len((await poll).deliveries) == 3


async def test_a_damaged_batch_takes_the_partition_offline() -> None:
    world = await QueueWorld.make()
    await world.send(b"a")
    log = world.logs["t", 0]
    real = log.read

    def read(offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        found = real(offset, bytes_max, end_offset)
        return found._replace(data=bytes(found.size - 1) + b"!")

    log.read = read  # type: ignore[method-assign]
    assert await why_refused(world) in (ErrorReason.UNAVAILABLE, ErrorReason.NOT_LEADER)
    assert len(world.offline) == 1


async def test_too_many_polls_that_wait_are_refused() -> None:
    world = QueueWorld(limits=replace(LIMITS, parked_per_queue_max=2, parked_max=3))
    await world.create("t", 2)
    polls = [asyncio.create_task(world.take(wait=30, partitions=[0])) for _ in range(2)]
    await until(lambda: world.host.parked_count == 2, "so many polls wait")
    assert await why_refused(world, wait=30, partitions=[0]) is ErrorReason.BUSY
    polls.append(asyncio.create_task(world.take(wait=30, partitions=[1])))
    await until(lambda: world.host.parked_count == 3, "so many polls wait")
    assert await why_refused(world, wait=30, partitions=[1]) is ErrorReason.BUSY
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert await world.take(wait=0.001) == []


async def test_what_a_worker_that_is_gone_would_have_got_is_for_others_after_a_pause() -> None:
    world = await QueueWorld.make()
    await world.take()
    world.ledger.gate.clear()
    await world.send(b"a")
    poll = asyncio.create_task(world.take(member="gone"))
    await until(lambda: world.ledger.waiting == 1, "a write waits")
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    world.ledger.gate.set()
    other = asyncio.create_task(world.take(wait=30))
    while not other.done():
        world.pass_time(world.group.settings.backoff_ms // 10)
        await asyncio.sleep(0.002)
    (taken,) = await other
    assert (taken.attempt, taken.record.value) == (2, b"a")
