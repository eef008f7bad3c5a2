"""Ordered groups where their partitions are led: where a poll goes on, and what an ack does."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from queue_world import QueueWorld, values_of

from moldau.data import stored_batches
from moldau.data.fetch import FetchService
from moldau.data.record_reader import ReadPage, read_page
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, PartitionIndex, TopicId, TopicPartition
from moldau.model.queue_limits import POLL_RESPONSE_BYTES_MAX
from moldau.queues import ordered
from moldau.queues.group_rpc_messages import OffsetCommitResult
from moldau.queues.ordered import OrderedGroups
from moldau.queues.types import Delivery, ErrorReason, QueueRefusedError, TokenResult
from moldau.testing.waiting import until


class World:
    """Partitions of topic `t`, and a coordinator that has `committed`, and who owns what."""

    def __init__(self, broker: QueueWorld) -> None:
        self.broker = broker
        self.committed: dict[TopicPartition, int] = {}
        self.asked_for = 0
        self.refusal: ErrorCode = ErrorCode.NONE
        self.owned: set[int] | None = None
        self.groups = OrderedGroups(
            clock=broker.clock,
            image=lambda: cast(Any, broker),
            partitions=cast(Any, broker),
            fetch=FetchService(asyncio.get_running_loop(), cast(Any, broker)),
            calls=cast(Any, self),
        )

    @classmethod
    async def make(cls, partitions: int = 1) -> "World":
        return cls(await QueueWorld.make(partitions))

    # ---- in place of the coordinator

    async def offsets(self, group: str, partitions: Sequence[TopicPartition]) -> list[int]:
        self.asked_for += 1
        return [self.committed.get(one, -1) for one in partitions]

    async def commit(
        self, group: str, member: str, offsets: Sequence[tuple[TopicPartition, int]]
    ) -> list[OffsetCommitResult]:
        told = []
        for partition, offset in offsets:
            before = self.committed.get(partition, -1)
            told.append(OffsetCommitResult(int(self.refusal), before))
            if self.refusal is ErrorCode.NONE:
                self.committed[partition] = max(before, offset)
        return told

    # ---- a consumer

    def is_assigned(self, topic: TopicId, index: int) -> bool:
        return self.owned is None or index in self.owned

    async def poll(
        self, count: int = 100, *, member: str = "m", wait: float = 0.0, at_end: bool = False
    ) -> list[Delivery]:
        topic = self.broker.topics["t"]
        polled = await self.groups.poll(
            "g",
            member,
            [(topic, partition.index) for partition in topic.partitions],
            count,
            starts_at_end=at_end,
            wait_seconds=wait,
            is_assigned=self.is_assigned,
        )
        return polled.deliveries

    async def ack(self, *deliveries: Delivery, member: str = "m") -> list[ErrorReason | None]:
        tokens = [one.token for one in deliveries]
        return _reasons(await self.groups.ack("g", member, tokens))

    async def nack(
        self, *deliveries: Delivery, delay_ms: int | None = None
    ) -> list[ErrorReason | None]:
        tokens = [one.token for one in deliveries]
        return _reasons(await self.groups.nack("g", "m", tokens, delay_ms, self.is_assigned))


def _reasons(verdicts: list[TokenResult]) -> list[ErrorReason | None]:
    return [verdict.reason for verdict in verdicts]


def place(index: int = 0) -> TopicPartition:
    return TopicPartition("t", PartitionIndex(index))


async def test_polls_repeat_and_acks_go_forward() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b", b"c")
    first = await world.poll()
    assert values_of(first) == values_of(await world.poll()) == [b"a", b"b", b"c"]
    assert await world.ack(first[1]) == [None]
    assert world.committed == {place(): 2}
    assert values_of(await world.poll()) == [b"c"]
    assert await world.ack(*first) == [ErrorReason.SETTLED, ErrorReason.SETTLED, None]
    assert await world.poll() == []
    # The place was asked for once: from then on every ack comes by here.
    assert world.asked_for == 1


async def test_another_member_begins_where_the_coordinator_says() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b", b"c")
    await world.poll()
    world.committed[place()] = 2
    assert values_of(await world.poll(member="other")) == [b"c"]
    assert world.asked_for == 2


async def test_a_leader_of_a_new_epoch_asks_again() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b")
    await world.poll()
    world.committed[place()] = 1
    await world.broker.change_leader()
    assert values_of(await world.poll()) == [b"b"]


async def test_what_the_log_no_longer_holds_is_passed() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b")
    end = await world.broker.send(b"c")
    assert len(await world.poll()) == 3
    world.broker.logs["t", 0].delete_before(Offset(end - 1))
    assert values_of(await world.poll()) == [b"c"]
    world.groups._positions.clear()
    assert values_of(await world.poll()) == [b"c"]


async def test_markers_and_what_was_aborted_are_passed_and_open_ones_waited_for() -> None:
    world = await World.make()
    await world.broker.send_in_transaction(b"lost", producer=1)
    await world.broker.end_transaction(1, is_commit=False)
    await world.broker.send_in_transaction(b"kept", producer=2)
    assert await world.poll() == []
    waiting = asyncio.create_task(world.poll(wait=60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await world.broker.end_transaction(2, is_commit=True)
    assert values_of(await waiting) == [b"kept"]
    # Nothing behind it but a marker: that is no reason to look again and again.
    await world.ack(*(await world.poll()))
    waiting = asyncio.create_task(world.poll(wait=60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await world.broker.send(b"next")
    assert values_of(await waiting) == [b"next"]


async def test_a_group_that_starts_at_the_end_stores_where_that_was() -> None:
    world = await World.make()
    await world.broker.send(b"old")
    assert await world.poll(at_end=True) == []
    assert world.committed == {place(): 1}
    await world.broker.send(b"new")
    await world.broker.change_leader()
    assert values_of(await world.poll(at_end=True)) == [b"new"]


async def test_a_begin_that_cannot_be_stored_is_not_taken() -> None:
    world = await World.make()
    world.refusal = ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(QueueRefusedError) as caught:
        await world.poll(at_end=True)
    assert caught.value.reason is ErrorReason.UNAVAILABLE


async def test_a_partition_that_pauses_leaves_the_others_alone() -> None:
    world = await World.make(2)
    await world.broker.send(b"a", partition=0)
    await world.broker.send(b"b", partition=1)
    first = {one.partition: one for one in await world.poll()}
    assert await world.nack(first[PartitionIndex(0)], delay_ms=500) == [None]
    assert values_of(await world.poll()) == [b"b"]
    world.broker.pass_time(499)
    assert values_of(await world.poll()) == [b"b"]
    world.broker.pass_time(1)
    assert sorted(values_of(await world.poll())) == [b"a", b"b"]
    # Who does not say how long waits for a second.
    assert await world.nack(first[PartitionIndex(0)]) == [None]
    world.broker.pass_time(999)
    assert values_of(await world.poll()) == [b"b"]
    world.broker.pass_time(1)
    assert len(await world.poll()) == 2


async def test_a_full_partition_does_not_hide_the_others() -> None:
    world = await World.make(3)
    for index in range(3):
        await world.broker.send(*([b"x"] * 10), partition=index)
    seen = {one.partition for _ in range(3) for one in await world.poll(5)}
    assert seen == {0, 1, 2}


async def test_an_answer_is_bounded_in_bytes_but_holds_one_message_at_least() -> None:
    world = await World.make(2)
    for index in range(2):
        await world.broker.send(bytes(700_000), partition=index)
        await world.broker.send(bytes(700_000), partition=index)
        await world.broker.send(bytes(700_000), partition=index)
    found = await world.poll()
    size = sum(len(one.record.value or b"") for one in found)
    assert 700_000 <= size <= POLL_RESPONSE_BYTES_MAX


async def test_who_lost_a_partition_while_it_waited_gets_nothing_of_it() -> None:
    world = await World.make(2)
    waiting = asyncio.create_task(world.poll(wait=60))
    await asyncio.sleep(0.01)
    world.owned = {1}
    await world.broker.send(b"a", partition=0)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await world.broker.send(b"b", partition=1)
    assert values_of(await waiting) == [b"b"]
    # And who has nothing left need not wait.
    world.owned = set()
    assert await world.poll(wait=60) == []


async def test_acks_and_nacks_of_who_does_not_have_the_partition_are_refused() -> None:
    world = await World.make()
    await world.broker.send(b"a")
    (found,) = await world.poll()
    world.refusal = ErrorCode.ILLEGAL_GENERATION
    assert await world.ack(found) == [ErrorReason.NOT_ASSIGNED]
    assert len(await world.poll()) == 1
    world.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await world.ack(found) == [ErrorReason.UNAVAILABLE]
    world.owned = set()
    assert await world.nack(found) == [ErrorReason.NOT_ASSIGNED]


async def test_a_nack_below_what_is_acked_is_settled() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b")
    first = await world.poll()
    await world.ack(first[0])
    assert await world.nack(first[0]) == [ErrorReason.SETTLED]
    assert values_of(await world.poll()) == [b"b"]


async def test_who_does_not_lead_says_so() -> None:
    world = await World.make()
    await world.broker.send(b"a")
    (found,) = await world.poll()
    world.broker.replicas["t", 0].end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(QueueRefusedError) as caught:
        await world.poll()
    assert caught.value.reason is ErrorReason.NOT_LEADER
    assert await world.ack(found) == [ErrorReason.NOT_LEADER]
    assert world.committed == {}


# ---- what happens between two looks


async def test_what_is_acked_while_a_place_is_asked_for_does_not_come_again() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b", b"c")
    first = await world.poll()
    await world.broker.change_leader()
    answered = asyncio.Event()
    real = world.offsets

    async def slow(group: str, partitions: Sequence[TopicPartition]) -> list[int]:
        told = await real(group, partitions)
        await answered.wait()
        return told

    world.offsets = slow  # type: ignore[method-assign]
    polling = asyncio.create_task(world.poll())
    await asyncio.sleep(0)
    assert await world.ack(first[1]) == [None]
    answered.set()
    assert values_of(await polling) == [b"c"]
    assert values_of(await world.poll()) == [b"c"]


async def test_what_another_member_acked_meanwhile_does_not_come_to_who_had_it_before() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b", b"c")
    answered = asyncio.Event()
    real = world.offsets

    async def slow(group: str, partitions: Sequence[TopicPartition]) -> list[int]:
        told = await real(group, partitions)
        await answered.wait()
        return told

    world.offsets = slow  # type: ignore[method-assign]
    late = asyncio.create_task(world.poll(member="m"))
    await asyncio.sleep(0)
    world.offsets = real  # type: ignore[method-assign]
    taken = await world.poll(member="other")
    assert await world.ack(taken[1], member="other") == [None]
    world.owned = set()
    answered.set()
    assert await late == []
    world.owned = None
    assert values_of(await world.poll(member="m")) == [b"c"]


async def test_what_is_acked_while_it_is_read_is_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b", b"c")
    first = await world.poll()

    async def slow(*arguments: Any, **named: Any) -> ReadPage:
        page = await read_page(*arguments, **named)
        assert await world.ack(first[0]) == [None]
        return page

    monkeypatch.setattr(ordered, "read_page", slow)
    assert values_of(await world.poll()) == [b"b", b"c"]


async def test_a_partition_that_cannot_be_read_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_batches, "BATCH_RECORDS_MAX", 2)
    world = await World.make(2)
    await world.broker.send(b"a", b"b", b"c", partition=0)
    await world.broker.send(b"d", partition=1)
    for _ in range(2):
        taken = await world.poll()
        assert values_of(taken) == [b"d"]
    await world.ack(*taken)
    with pytest.raises(QueueRefusedError, match="cannot be decoded"):
        await world.poll()


async def test_a_leader_that_may_be_none_any_more_asks_before_it_delivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World.make()
    await world.broker.send(b"a")
    replica = world.broker.replicas["t", 0]
    is_leading = True

    async def confirm() -> None:
        if not is_leading:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    monkeypatch.setattr(replica, "has_recent_majority", lambda: False)
    monkeypatch.setattr(replica, "confirm_leadership", confirm)
    assert values_of(await world.poll()) == [b"a"]
    is_leading = False
    with pytest.raises(QueueRefusedError) as caught:
        await world.poll()
    assert caught.value.reason is ErrorReason.NOT_LEADER


@pytest.mark.parametrize("by_leader", [False, True])
async def test_a_poll_that_waits_ends_when_its_place_is_another_ones(by_leader: bool) -> None:
    world = await World.make()
    waiting = asyncio.create_task(world.poll(wait=30))
    await until(lambda: bool(world.groups._positions), "it has a place")
    await asyncio.sleep(0.01)
    if by_leader:
        await world.broker.change_leader()
    await world.poll(member="other")
    await world.broker.send(b"a", b"b")
    taken = await world.poll(member="other")
    assert await world.ack(taken[0], member="other") == [None]
    # Who is told that the leader is another one has got nothing either.
    async with asyncio.timeout(20):
        with suppress(QueueRefusedError):
            assert await waiting == []
    assert values_of(await world.poll()) == [b"b"]
