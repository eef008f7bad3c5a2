"""Stats and peeking: what is told of a queue, without taking anything."""

from functools import partial

from queue_world import QueueWorld, ack, settle, stats, values_of

from moldau.leases.commands import Nack
from moldau.queues.types import MessageState


async def test_stats_count_what_is_ready_leased_delayed_and_dead() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.create("g.dead", 1)
    world.append_failures = 1_000_000
    later = str(world.clock.wall + 500).encode()
    await world.send(b"later", headers=[("moldau-deliver-at", later)])
    await world.send(b"a", b"b", b"c", b"d")
    taken = await world.take(3)
    await ack(world, taken[:1])
    await settle(world, taken[1:2], partial(Nack, reason="bad"))
    seen = await stats(world)
    assert (seen.is_here, seen.leader) == (True, 1)
    assert (seen.ready, seen.leased, seen.delayed, seen.dead) == (1, 1, 1, 1)
    assert (seen.floor, seen.end) == (0, 5)


async def test_peeking_shows_messages_and_takes_none() -> None:
    world = await QueueWorld.make(partitions=2)
    await world.send(b"a", b"b", b"c")
    await world.send(b"x", partition=1)
    taken = await world.take(1, partitions=[0], member="me")
    await settle(world, await world.take(1, partitions=[0]), partial(Nack, delay_ms=100))
    seen = await world.host.peek(world.group, world.topics["t"], 10)
    shown = [
        (each.record.value, each.state, each.attempt, each.consumer, each.due) for each in seen
    ]
    now = world.clock.wall
    assert shown == [
        (b"a", MessageState.LEASED, 1, "me", taken[0].lease_until),
        (b"x", MessageState.READY, 0, "", 0),
        (b"b", MessageState.DELAYED, 1, "", now + 100),
        (b"c", MessageState.READY, 0, "", 0),
    ]
    assert len(await world.host.peek(world.group, world.topics["t"], 2)) == 2
    assert sorted(values_of(await world.take())) == [b"c", b"x"]


async def test_stats_of_a_partition_that_another_broker_leads_name_its_leader() -> None:
    world = await QueueWorld.make()
    world.replicas["t", 0]._is_leading = False
    seen = await stats(world)
    assert (seen.is_here, seen.leader, seen.ready) == (False, 1, 0)
