"""What the queue service makes of a call before others carry it out: members, modes, partitions."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from queue_world import QueueWorld, values_of

from moldau.data.fetch import FetchService
from moldau.metadata.commands import DropQueueGroup
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, Epoch, PartitionIndex
from moldau.queues.group_rpc_messages import (
    GroupDescription,
    HeartbeatKind,
    MemberDescription,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    OffsetCommitResult,
)
from moldau.queues.members import Members
from moldau.queues.ordered import OrderedGroups
from moldau.queues.service import QueueService
from moldau.queues.types import (
    AssignedPartition,
    Assignment,
    ErrorReason,
    PollOptions,
    QueueRefusedError,
)
from moldau.testing.waiting import until

ASSIGNMENT = Assignment(
    epoch=7, partitions=(AssignedPartition("t", PartitionIndex(0), BrokerId(1), "here:1"),)
)


class World:
    """One broker with topic `t`: queue group `g`, and an ordered group `o`."""

    def __init__(self, broker: QueueWorld) -> None:
        self.broker = broker
        self.members: dict[str, bool] = {"w": True, "v": True, "m": False}
        """Whether they are of the queue."""
        self.owned = [0]
        self.beats: list[MemberHeartbeatRequest] = []
        self.described: list[str] = []
        self.told_gone: list[tuple[str, str]] = []
        self.submitted: list[Any] = []
        self.defects: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.views = Members(
            clock=broker.clock,
            calls=cast(Any, self),
            on_member_left=lambda *gone: self.service.on_member_left(*gone),
        )
        self.service = QueueService(
            me=BrokerId(1),
            loop=loop,
            clock=broker.clock,
            metadata=cast(Any, self),
            partitions=cast(Any, broker),
            leader_of=lambda topic, index: self.leader,
            calls=cast(Any, self),
            members=self.views,
            connect_handler=cast(Any, self),
            leases=broker.host,
            ordered=OrderedGroups(
                clock=broker.clock,
                image=lambda: cast(Any, broker),
                partitions=cast(Any, broker),
                fetch=FetchService(loop, cast(Any, broker)),
                calls=cast(Any, self),
            ),
            on_internal_error=self.defects.append,
        )
        self.leader = Leader(BrokerId(1), Epoch(1))
        cast(Any, broker).queue_groups = broker.groups

    @classmethod
    async def make(cls, partitions: int = 1, **settings: Any) -> "World":
        return cls(await QueueWorld.make(partitions, **settings))

    # ---- in place of the metadata

    @property
    def image(self) -> Any:
        return self.broker

    async def fresh(self) -> Any:
        return self.broker

    async def submit(self, command: Any) -> None:
        self.submitted.append(command)
        del self.broker.groups[command.name]

    # ---- in place of the coordinator

    def _commands(self, name: str) -> MemberDescription:
        topic_id = self.broker.topics["t"].topic_id
        is_queue = self.members[name]
        return MemberDescription(
            member=name,
            topics=("t",),
            is_queue=is_queue,
            assigned=[] if is_queue else [(topic_id, self.owned)],
            revoking=[],
        )

    async def describe(self, group: str) -> GroupDescription:
        self.described.append(group)
        is_queue = group == "g"
        return GroupDescription(
            members=[
                self._commands(name) for name in self.members if self.members[name] == is_queue
            ],
            classic_members=0,
            has_offsets=False,
        )

    async def heartbeat(self, asked: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        self.beats.append(asked)
        if asked.kind is HeartbeatKind.LEAVE:
            self.members.pop(asked.member, None)
            return MemberHeartbeatResponse(interval_ms=0)
        return MemberHeartbeatResponse(interval_ms=500, member=self._commands(asked.member))

    async def offsets(self, group: str, partitions: Any) -> list[int]:
        return [-1] * len(partitions)

    async def commit(self, group: str, member: str, offsets: Any) -> list[OffsetCommitResult]:
        return [OffsetCommitResult(ErrorCode.NONE)] * len(offsets)

    async def announce_member_left(self, group: str, member: str) -> None:
        self.told_gone.append((group, member))

    def assignment(self, told: MemberDescription) -> Assignment:
        return ASSIGNMENT

    # ---- a consumer

    async def poll(self, consumer: str = "w", **asked: Any) -> list[bytes]:
        group = "g" if self.members.get(consumer, True) else "o"
        grant = {"count_max": 10, **asked}
        polled = await self.service.poll(PollOptions(group=group, consumer=consumer, **grant))
        return values_of(polled.deliveries)

    async def reason(self, consumer: str = "w", **asked: Any) -> ErrorReason:
        with pytest.raises(QueueRefusedError) as caught:
            await self.poll(consumer, **asked)
        return caught.value.reason


async def test_members_of_each_kind_get_messages_of_theirs() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b")
    assert await world.poll(count_max=1) == [b"a"]
    assert await world.poll("v") == [b"b"]
    assert await world.poll("v") == []
    # The ordered group takes nothing away, and nothing is taken away from it.
    assert await world.poll("m") == await world.poll("m") == [b"a", b"b"]
    assert await world.reason("stranger") is ErrorReason.UNKNOWN_CONSUMER


async def test_who_is_gone_waits_no_longer_and_what_it_has_is_for_others() -> None:
    world = await World.make()
    await world.broker.send(b"a")
    assert await world.poll() == [b"a"]
    waiting = asyncio.create_task(world.poll(wait_ms=60_000))
    ordered = asyncio.create_task(world.poll("m", wait_ms=60_000, partitions={"t": frozenset({0})}))
    other = asyncio.create_task(world.poll("v", wait_ms=60_000))
    assert await ordered == [b"a"]
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert not other.done()
    await world.service.disconnect("g", "w")
    with pytest.raises(QueueRefusedError) as caught:
        await waiting
    assert caught.value.reason is ErrorReason.UNKNOWN_CONSUMER
    assert await other == [b"a"]
    await until(lambda: world.told_gone == [("g", "w")], "the member is told as gone")
    assert not world.service._polling


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    world = await World.make()
    waiting = asyncio.create_task(world.poll(wait_ms=60_000))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not world.service._polling
    await world.broker.send(b"a")
    assert await world.poll("v") == [b"a"]


async def test_partitions_that_are_named_must_exist_be_assigned_and_led_here() -> None:
    world = await World.make(2)
    one = {"t": frozenset({1})}
    await world.broker.send(b"a", partition=1)
    assert await world.poll(partitions=one) == [b"a"]
    assert await world.reason(partitions={"x": frozenset({0})}) is ErrorReason.UNKNOWN_TOPIC
    assert await world.reason(partitions={"t": frozenset({2})}) is ErrorReason.INVALID_ARGUMENT
    await world.broker.create("other", 1)
    assert await world.reason(partitions={"other": frozenset({0})}) is ErrorReason.UNKNOWN_TOPIC
    assert await world.reason("m", partitions=one) is ErrorReason.NOT_ASSIGNED
    world.owned = [1]
    assert await world.poll("m", partitions=one) == [b"a"]
    world.broker.replicas["t", 1].end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await world.reason(partitions=one) is ErrorReason.NOT_LEADER
    assert await world.reason("m", partitions=one) is ErrorReason.NOT_LEADER
    # Who names none is given what there is here.
    assert await world.poll() == await world.poll("m") == []


async def test_what_is_assigned_while_a_poll_waits_is_seen_by_it() -> None:
    world = await World.make(2)
    world.owned = []
    await world.broker.send(b"a", partition=1)
    waiting = asyncio.create_task(world.poll("m", wait_ms=60_000))
    await asyncio.sleep(0.01)
    world.owned = [1]
    await world.views.refresh("o")
    assert await waiting == [b"a"]


async def test_a_heartbeat_returns_only_what_is_new() -> None:
    world = await World.make()
    owned = {"t": frozenset({1, 0}), "unknown": frozenset({3})}
    same = await world.service.heartbeat("g", "w", 7, owned)
    assert (same.heartbeat_interval_ms, same.assignment) == (500, None)
    assert world.beats[0].owned == [(world.broker.topics["t"].topic_id, [0, 1])]
    other = await world.service.heartbeat("g", "w", 6, {})
    assert other.assignment == ASSIGNMENT


async def test_what_is_for_queues_only_is_refused_for_others() -> None:
    world = await World.make()
    service = world.service

    async def reason(call: Any) -> ErrorReason:
        with pytest.raises(QueueRefusedError) as caught:
            await call
        return caught.value.reason

    assert await reason(service.stats("o")) is ErrorReason.UNKNOWN_GROUP
    assert world.described == []
    world.broker.topics[CONSUMER_OFFSETS_TOPIC] = world.broker.topics["t"]
    assert await world.reason("m", visibility_ms=5) is ErrorReason.INVALID_ARGUMENT
    assert await reason(service.extend("o", "m", [b"x"], visibility_ms=5)) is ErrorReason.OTHER_MODE
    assert await reason(service.stats("o")) is ErrorReason.OTHER_MODE
    assert await reason(service.peek("o", "t", count_max=1)) is ErrorReason.OTHER_MODE
    assert await reason(service.peek("g", "x", count_max=1)) is ErrorReason.UNKNOWN_TOPIC
    assert await reason(service.peek("g", "t", count_max=0)) is ErrorReason.INVALID_ARGUMENT
    world.members = {}
    assert await reason(service.stats("nobody")) is ErrorReason.UNKNOWN_GROUP
    assert await reason(service.delete_group("nobody")) is ErrorReason.UNKNOWN_GROUP


async def test_the_numbers_of_a_group_are_of_what_is_led_here() -> None:
    world = await World.make()
    await world.broker.send(b"a", b"b")
    await world.poll(count_max=1)
    stats = await world.service.stats("g")
    (one,) = stats.partitions
    assert (one.is_here, one.ready, one.leased, stats.consumers) == (True, 1, 1, 2)
    world.leader = NO_LEADER
    (one,) = (await world.service.stats("g")).partitions
    assert (one.is_here, one.leader) == (False, -1)
    found = await world.service.peek("g", "t", count_max=5)
    assert [peeked.record.value for peeked in found] == [b"a", b"b"]


async def test_a_queue_that_starts_at_the_end_does_so_when_its_partition_is_first_led() -> None:
    world = await World.make(starts_at_end=True)
    await world.broker.send(b"old")
    world.service.on_leadership(world.broker.replicas["t", 0])
    await until(lambda: bool(world.broker.ledger.writes), "the ledger is written")
    await world.broker.send(b"new")
    assert await world.poll(wait_ms=1_000) == [b"new"]


async def test_groups_are_listed_by_name_all_or_those_of_a_topic() -> None:
    world = await World.make()
    group = world.broker.groups["g"]
    world.broker.groups["a"] = msgspec.structs.replace(group, name="a", topics=("s", "t"))
    assert [each.name for each in await world.service.list_groups()] == ["a", "g"]
    assert [each.name for each in await world.service.list_groups("s")] == ["a"]
    assert await world.service.list_groups("none") == []


async def test_a_deleted_group_has_neither_members_nor_messages_nor_a_name() -> None:
    world = await World.make()
    await world.broker.send(b"a")
    (found,) = (
        await world.service.poll(PollOptions(group="g", consumer="w", count_max=1))
    ).deliveries
    assert (await world.service.ack("g", "w", [found.token]))[0].reason is None
    await world.service.delete_group("g")
    assert world.submitted == [DropQueueGroup(name="g")]
    assert sorted(heartbeat.member for heartbeat in world.beats) == ["v", "w"]
    assert world.broker.ledger.forgotten
    assert await world.reason() is ErrorReason.UNKNOWN_CONSUMER


async def test_a_topic_that_was_added_to_the_group_by_another_broker_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World.make()
    await world.broker.send(b"a")
    world.broker.groups["g"] = replace(world.broker.group, topics=())
    asked = PollOptions(group="g", consumer="w", count_max=1)

    async def fresh() -> Any:
        world.broker.groups["g"] = world.broker.group
        return world.broker

    with pytest.raises(QueueRefusedError) as caught:
        await world.service.poll(asked)
    assert caught.value.reason is ErrorReason.UNKNOWN_TOPIC
    monkeypatch.setattr(world, "fresh", fresh)
    assert values_of((await world.service.poll(asked)).deliveries) == [b"a"]
