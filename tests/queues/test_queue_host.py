"""The lease host: who is given which message, what comes again, and what is refused."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from queue_world import LIMITS, QueueWorld, ack, settle, stats, values_of, why_refused

from moldau.data.commit import trim_replica
from moldau.leases.commands import Ack, Extend, Nack
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId
from moldau.model.ids import Offset, PartitionIndex
from moldau.queues.ledgers import LedgerRefusedError
from moldau.queues.queue_counts import Backlog
from moldau.queues.types import DONE, Delivery, ErrorReason, QueueRefusedError, TokenResult
from moldau.records.compression import Codec
from moldau.testing.waiting import until, wait_seconds_max

# ---- taking and settling


async def test_messages_are_given_once_in_order_with_what_a_worker_needs() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b", b"c")
    first = await world.take(2)
    second = await world.take(2)
    assert values_of(first) == [b"a", b"b"]
    assert values_of(second) == [b"c"]
    assert {(each.topic, each.partition, each.attempt) for each in first} == {("t", 0, 1)}
    assert {each.lease_until for each in first} == {world.clock.wall + 30_000}
    assert await world.take() == []


async def test_what_is_acked_never_comes_again_and_the_rest_does_when_its_lease_ends() -> None:
    world = await QueueWorld.make(visibility_ms=1_000)
    await world.send(b"a", b"b", b"c")
    taken = await world.take()
    await ack(world, taken[1:2])
    world.pass_time(1_000)
    again = await world.take(member="other")
    assert values_of(again) == [b"a", b"c"]
    assert [each.attempt for each in again] == [2, 2]
    assert await settle(world, taken[:1], Ack) == [
        TokenResult(ErrorReason.EXPIRED, Refusal.EXPIRED.value)
    ]
    assert (await settle(world, taken[1:2], Ack))[0].reason is ErrorReason.SETTLED


async def test_a_nack_brings_it_back_after_the_delay_that_it_names_or_the_groups_pause() -> None:
    world = await QueueWorld.make(backoff_ms=500)
    await world.send(b"a", b"b")
    taken = await world.take()
    assert await settle(world, taken[:1], partial(Nack, delay_ms=100)) == [DONE]
    assert await settle(world, taken[1:], Nack) == [DONE]
    assert await world.take() == []
    world.pass_time(100)
    assert values_of(await world.take()) == [b"a"]
    world.pass_time(400)
    assert values_of(await world.take()) == [b"b"]


async def test_an_extended_lease_lasts_so_long_from_then_on() -> None:
    world = await QueueWorld.make(visibility_ms=1_000)
    await world.send(b"a")
    taken = await world.take()
    world.pass_time(900)
    assert await settle(world, taken, partial(Extend, visibility_ms=1_000)) == [DONE]
    world.pass_time(900)
    assert await world.take() == []
    await ack(world, taken)


async def test_a_poll_may_say_how_long_its_leases_last() -> None:
    world = await QueueWorld.make()
    await world.send(b"a")
    (taken,) = await world.take(visibility_ms=5)
    assert taken.lease_until == world.clock.wall + 5


async def test_a_new_visibility_of_the_group_counts_at_once() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    await world.take(1)
    settings = replace(world.group.settings, visibility_ms=77)
    world.groups["g"] = replace(world.group, settings=settings)
    (taken,) = await world.take(1)
    assert taken.lease_until == world.clock.wall + 77


async def test_invalid_tokens_and_those_of_others_are_distinguished() -> None:
    world = await QueueWorld.make()
    await world.create("other", 1)
    await world.send(b"a")
    taken = await world.take()
    token = taken[0].token
    other_topic = token[:1] + world.topics["other"].topic_id + token[17:]
    no_topic = token[:1] + b"?" * 16 + token[17:]
    ordered = b"\x01" + token[1:]
    wrong = [b"", b"x" * 50, token[:-1], other_topic, no_topic, ordered, token]
    verdicts = await world.host.settle(world.group, "w", wrong, Ack)
    assert [verdict.reason for verdict in verdicts] == [
        ErrorReason.BAD_TOKEN,
        ErrorReason.BAD_TOKEN,
        ErrorReason.BAD_TOKEN,
        ErrorReason.OTHER_GROUP,
        ErrorReason.UNKNOWN_TOPIC,
        ErrorReason.BAD_TOKEN,
        None,
    ]


async def test_another_member_cannot_settle_and_another_group_has_a_queue_of_its_own() -> None:
    world = await QueueWorld.make()
    other = world.groups["h"] = replace(world.group, name="h")
    await world.send(b"a")
    taken = await world.take()
    assert (await settle(world, taken, Ack, "thief"))[0].reason is ErrorReason.NOT_HOLDER
    verdicts = await world.host.settle(other, "w", [taken[0].token], Ack)
    assert verdicts[0].reason is ErrorReason.OTHER_GROUP
    topic = world.topics["t"]
    polled = await world.host.poll(other, [(topic, PartitionIndex(0))], "w", 1, None, 0)
    assert values_of(polled.deliveries) == [b"a"]


# ---- several partitions


async def test_a_poll_gathers_from_several_partitions_and_begins_with_another_each_time() -> None:
    world = await QueueWorld.make(partitions=3)
    for partition in range(3):
        await world.send(
            *[b"%d%d" % (partition, number) for number in range(4)], partition=partition
        )
    assert {each.partition for each in await world.take(12)} == {0, 1, 2}
    for partition in range(3):
        await world.send(b"x", b"y", partition=partition)
    assert sorted([(await world.take(1))[0].partition for _ in range(3)]) == [0, 1, 2]


async def test_an_answer_is_bounded_in_bytes_but_for_one_message() -> None:
    world = await QueueWorld.make(partitions=2)
    big = bytes(LIMITS.poll_bytes_max // 2 + 1)
    for partition in (0, 1):
        await world.send(big, partition=partition)
        await world.send(big, partition=partition)
    taken = [await world.take() for _ in range(4)]
    assert [len(some) for some in taken] == [1, 1, 1, 1]
    for some in taken:
        assert await settle(world, some, partial(Nack, delay_ms=0)) == [DONE]
    # As well when they come again.
    assert [len(await world.take()) for _ in range(5)] == [1, 1, 1, 1, 0]


async def test_a_partition_that_is_not_led_here_is_passed_over_unless_it_is_the_only_one() -> None:
    world = await QueueWorld.make(partitions=2)
    await world.send(b"a", partition=1)
    del world.replicas["t", 0]
    assert values_of(await world.take()) == [b"a"]
    assert await why_refused(world, partitions=[0]) is ErrorReason.UNKNOWN_TOPIC


# ---- what may be read


async def test_only_committed_transactions_are_delivered_and_in_their_place() -> None:
    world = await QueueWorld.make()
    await world.send_in_transaction(b"aborted", producer=7)
    await world.send_in_transaction(b"committed", producer=8)
    await world.send(b"plain")
    assert await world.take() == []
    poll = asyncio.create_task(world.take(wait=30))
    await world.end_transaction(7, is_commit=False)
    await asyncio.sleep(0.01)
    assert not poll.done() or values_of(await poll) == []
    await world.end_transaction(8, is_commit=True)
    assert values_of(await poll) == [b"committed", b"plain"]
    await world.send(b"after")
    assert values_of(await world.take()) == [b"after"]
    assert await world.take() == []


async def test_compressed_and_large_batches_are_read_as_well() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b", codec=Codec.ZSTD)
    await world.send(bytes(300_000), b"c")
    assert values_of(await world.take()) == [b"a", b"b", bytes(300_000), b"c"]


async def test_what_retention_deletes_is_passed_and_what_comes_after_is_delivered() -> None:
    world = await QueueWorld.make(visibility_ms=1_000)
    await world.send(b"a")
    await world.send(b"b")
    await world.take(1)
    await world.send(b"c")
    assert (await trim_replica(world.replicas["t", 0], Offset(2))).name == "NONE"
    world.pass_time(1_000)
    assert values_of(await world.take()) == [b"c"]
    assert (await stats(world)).floor == 2


async def test_a_redelivery_is_read_again_if_it_was_not_kept() -> None:
    world = QueueWorld(limits=replace(LIMITS, cache_bytes_max=0), visibility_ms=10)
    await world.create("t", 1)
    await world.send(b"a", b"b")
    await world.send(b"c")
    first = await world.take()
    world.pass_time(10)
    assert [each.record for each in await world.take()] == [each.record for each in first]


# ---- writes that fail


async def test_a_poll_whose_write_fails_is_refused_and_the_next_one_served() -> None:
    world = await QueueWorld.make()
    await world.send(b"a")
    await stats(world)
    world.ledger.fails_before = 1
    assert await why_refused(world) is ErrorReason.UNAVAILABLE
    assert [each.attempt for each in await world.take()] == [1]


async def test_a_poll_whose_write_may_have_happened_is_refused_and_counts() -> None:
    world = await QueueWorld.make(visibility_ms=1_000)
    await world.send(b"a")
    await stats(world)
    world.ledger.fails_after = 1
    assert await why_refused(world) is ErrorReason.UNAVAILABLE
    # It is leased to the one who never got it.
    assert await world.take() == []
    world.pass_time(1_000)
    assert [each.attempt for each in await world.take()] == [2]


async def test_an_ack_whose_write_fails_is_refused_and_may_be_repeated() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    taken = await world.take()
    world.ledger.fails_before = 1
    assert [each.reason for each in await settle(world, taken[:1], Ack)] == [
        ErrorReason.UNAVAILABLE
    ]
    await ack(world, taken[:1])
    world.ledger.fails_after = 1
    assert [each.reason for each in await settle(world, taken[1:], Ack)] == [
        ErrorReason.UNAVAILABLE
    ]
    assert [each.reason for each in await settle(world, taken[1:], Ack)] == [ErrorReason.SETTLED]


async def test_nothing_is_answered_before_it_is_committed() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    first = await world.take(1)
    world.ledger.gate.clear()
    calls: list[asyncio.Task[Any]] = [
        asyncio.create_task(settle(world, first, Ack)),
        asyncio.create_task(world.take()),
        # Settled by the first, if that is committed.
        asyncio.create_task(settle(world, first, Ack)),
    ]
    await asyncio.sleep(0.02)
    assert [call.done() for call in calls] == [False, False, False]
    world.ledger.gate.set()
    results = await asyncio.gather(*calls)
    assert results[0] == [DONE]
    assert values_of(results[1]) == [b"b"]
    assert results[2][0].reason is ErrorReason.SETTLED


async def test_a_queue_that_cannot_be_loaded_says_so_and_is_loaded_later() -> None:
    world = await QueueWorld.make()
    await world.send(b"a")
    world.ledger.fails_loading = 3
    assert await why_refused(world) is ErrorReason.UNAVAILABLE
    taken: list[Delivery] = []
    while not taken:
        await asyncio.sleep(0.001)
        with suppress(QueueRefusedError):
            taken = await world.take(wait=30)
    assert (values_of(taken), world.ledger.fails_loading) == ([b"a"], 0)


# ---- leaders


async def test_a_waiting_request_is_answered_when_the_leader_changes() -> None:
    world = await QueueWorld.make()
    poll = asyncio.create_task(world.take(wait=30))
    await until(lambda: world.host.parked_count == 1, "so many polls wait")
    await world.change_leader(new_host=False)
    with pytest.raises(QueueRefusedError) as caught:
        await poll
    assert caught.value.reason is ErrorReason.NOT_LEADER


async def test_a_new_leader_keeps_acks_and_leases() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b", b"c")
    taken = await world.take()
    await ack(world, taken[:1])
    await world.change_leader()
    assert await world.take(member="other") == []
    verdicts = await settle(world, taken[:2], Ack)
    assert [each.reason for each in verdicts] == [ErrorReason.SETTLED, None]
    world.pass_time(30_000)
    again = await world.take(member="other")
    assert [(each.record.value, each.attempt) for each in again] == [(b"c", 2)]
    assert [each.reason for each in await settle(world, taken[2:], Ack)] == [ErrorReason.EXPIRED]


async def test_a_leader_that_is_fenced_answers_no_success() -> None:
    world = await QueueWorld.make()
    await world.send(b"a")
    taken = await world.take()

    async def fence(*_: object) -> None:
        raise LedgerRefusedError(Refusal.FENCED)

    world.ledger.write = fence  # type: ignore[method-assign, assignment]
    assert [each.reason for each in await settle(world, taken, Ack)] == [ErrorReason.UNAVAILABLE]
    await until(lambda: not world.host._queues, "the queue is closed")


async def test_an_answer_that_comes_after_the_leader_is_gone_is_none() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    taken = await world.take(1)
    world.ledger.gate.clear()
    calls: list[asyncio.Task[Any]] = [
        asyncio.create_task(settle(world, taken, Ack)),
        asyncio.create_task(world.take()),
    ]
    await until(lambda: world.ledger.waiting == 1, "a write waits")
    world.host.stop()
    world.ledger.gate.set()
    verdicts, taking = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(verdicts, BaseException)
    assert [verdict.reason for verdict in verdicts] == [ErrorReason.UNAVAILABLE]
    assert isinstance(taking, QueueRefusedError)
    assert await why_refused(world) is ErrorReason.UNAVAILABLE


async def test_a_queue_begins_where_its_group_is_configured() -> None:
    world = await QueueWorld.make(starts_at_end=True)
    await world.send(b"before")
    world.host.load(world.group, [(world.topics["t"], PartitionIndex(0))])
    await world.send(b"after")
    assert values_of(await world.take()) == [b"after"]


# ---- members and groups


async def test_what_an_evicted_member_has_is_for_others_at_once() -> None:
    world = await QueueWorld.make()
    await world.send(b"a", b"b")
    await world.take(1, member="gone")
    kept = await world.take(1, member="stays")
    await world.host.evict("g", "gone")
    await world.host.evict("g", "stranger")
    assert values_of(await world.take()) == [b"a"]
    await ack(world, kept, "stays")


async def test_a_forgotten_group_is_forgotten_and_begins_again() -> None:
    world = await QueueWorld.make(partitions=2)
    await world.send(b"a")
    await ack(world, await world.take())
    poll = asyncio.create_task(world.take(wait=30))
    await until(lambda: world.host.parked_count == 1, "so many polls wait")
    await world.host.forget("g", [world.topics["t"]])
    with pytest.raises(QueueRefusedError) as caught:
        await poll
    assert caught.value.reason is ErrorReason.UNKNOWN_GROUP
    assert len(world.ledger.forgotten) == 2
    assert values_of(await world.take()) == [b"a"]


async def test_what_a_recreated_group_has_acked_is_not_forgotten_with_the_old_one() -> None:
    world = await QueueWorld.make(partitions=40)
    topic = world.topics["t"]
    await world.send(b"a", partition=39)
    del world.groups["g"]
    real = world.ledger.forget

    async def forget(queue: QueueId) -> None:
        await real(queue)
        # A worker connects while the first of them are forgotten, and is done before the last.
        if "g" not in world.groups:
            world.groups["g"] = world.group
            await ack(world, await world.take(partitions=[39]))

    world.ledger.forget = forget  # type: ignore[method-assign]
    await world.host.forget("g", [topic], if_deleted=True)
    assert await world.take(partitions=[39]) == []


async def test_queues_of_a_group_that_is_gone_end_by_themselves() -> None:
    world = await QueueWorld.make()
    await world.take()
    del world.groups["g"]
    await until(lambda: not world.host._queues, "the queue is closed")


# ---- backlogs for metrics


async def test_to_read_backlogs_loads_no_queue_and_keeps_none_loaded() -> None:
    limits = replace(LIMITS, idle_seconds_max=0.05)
    world = await QueueWorld.make(limits=limits)
    await world.send(b"a", b"b", b"c")
    assert list(world.host.backlogs()) == []
    assert len(await world.take(1)) == 1
    (before,) = world.host.backlogs()
    assert before == ("g", "t", Backlog(ready=2, leased=1, delayed=0, dead=0))

    def is_unloaded() -> bool:
        return [one for *_, one in world.host.backlogs()] == [Backlog(3, 0, 0, 0)]

    # Though it is read much more often.
    async with asyncio.timeout(wait_seconds_max()):
        while not is_unloaded():
            await asyncio.sleep(0.001)
    writes = len(world.ledger.writes)
    await world.send(b"d", b"e")
    assert [one for *_, one in world.host.backlogs()] == [Backlog(5, 0, 0, 0)]
    assert len(world.ledger.writes) == writes
    # A group that is gone has no backlog, and one that is used again has it once.
    groups = dict(world.groups)
    world.groups.clear()
    assert list(world.host.backlogs()) == []
    world.groups.update(groups)
    assert len(await world.take(2)) == 2
    ((*_, again),) = world.host.backlogs()
    assert (again.ready, again.leased) == (2, 3)
