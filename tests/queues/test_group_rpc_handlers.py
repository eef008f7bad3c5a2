"""The coordinator's side: members without epochs, offsets that only go forward."""

import asyncio
from typing import cast

import pytest
from group_world import World as GroupWorld

from moldau.control.topic_service import TopicService
from moldau.coordination.group_topics import ImageTopics
from moldau.groups.assignors.queue import QueueAssignor
from moldau.groups.config import GroupConfig
from moldau.groups.coordinator import BUILT_IN_ASSIGNORS, GroupCoordinator
from moldau.groups.events import OffsetToCommit
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicPartition
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.group_rpc_messages import (
    GroupCommitRequest,
    GroupDescription,
    GroupMemberRef,
    GroupOffsetsRequest,
    HeartbeatKind,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    decode,
    encode,
    unpack_partitions,
)


class Groups(GroupWorld):
    """With topics and the queue's assignor."""

    def make_groups(self, **changes):
        groups = super().make_groups(**changes)
        topics = ImageTopics(lambda: self.image)
        groups._new_state = lambda: GroupCoordinator(
            GroupConfig(initial_rebalance_delay_ms=0),
            new_member_id=lambda client: client,
            wall_ms=self.clock.wall_ms,
            topics=topics,
            assignors=[*BUILT_IN_ASSIGNORS, QueueAssignor()],
        )
        return groups


NOBODY = BrokerId(0)


class World:
    def __init__(self) -> None:
        self.groups = Groups()
        self.gone: list[tuple[str, str]] = []
        self.answers = GroupRpcHandlers(
            self.groups.groups,
            cast(TopicService, self.groups),
            lambda group, member: self.gone.append((group, member)),
        )
        self.topic_id = self.groups.image.topics["t"].topic_id

    async def started(self) -> "World":
        self.replicas = [self.groups.lead(index) for index in (0, 1)]
        await self.groups.loaded()
        return self

    async def heartbeat(
        self, member: str, kind: HeartbeatKind, owned: set[int] | None = None, **fields
    ):
        asked = MemberHeartbeatRequest(
            group=fields.pop("group", "g"),
            member=member,
            kind=kind,
            owned=None if owned is None else [(self.topic_id, sorted(owned))],
            **fields,
        )
        return decode(
            await self.answers.handle_heartbeat(NOBODY, encode(asked)), MemberHeartbeatResponse
        )

    async def join(self, member: str, **fields):
        return await self.heartbeat(
            member, HeartbeatKind.JOIN, topics=("t",), session_timeout_ms=10_000, **fields
        )

    async def commit(self, member: str, offset: int, partition: int = 0):
        asked = GroupCommitRequest(group="g", member=member, offsets=[("t", partition, offset)])
        (told,) = await self.answers.commit(asked)
        return ErrorCode(told.error), told.before

    def has(self, told: MemberHeartbeatResponse) -> frozenset[int]:
        assert told.member is not None
        return unpack_partitions(told.member.assigned).get(self.topic_id, frozenset())


async def test_members_come_stay_and_go_without_naming_epochs():
    world = await World().started()
    joined = await world.join("a", client_id="c")
    assert world.has(joined) == {0, 1, 2, 3}
    assert 0 < joined.interval_ms <= 2_000
    await world.join("b")
    # It lets go in its own time, and the other gets it then.
    told = await world.heartbeat("a", HeartbeatKind.STAY, {0, 1, 2, 3})
    kept = world.has(told)
    assert len(kept) == 2
    assert unpack_partitions(told.member.revoking)[world.topic_id] == frozenset({0, 1, 2, 3}) - kept
    assert world.has(await world.heartbeat("b", HeartbeatKind.STAY, set())) == frozenset()
    await world.heartbeat("a", HeartbeatKind.STAY, set(kept))
    assert world.has(await world.heartbeat("b", HeartbeatKind.STAY, set())) == {0, 1, 2, 3} - kept
    assert (await world.heartbeat("a", HeartbeatKind.LEAVE)).member is None
    assert world.has(await world.heartbeat("b", HeartbeatKind.STAY)) == {0, 1, 2, 3}
    # Who is gone may say so again, but not stay.
    assert (await world.heartbeat("a", HeartbeatKind.LEAVE)).member is None
    with pytest.raises(RefusedError) as caught:
        await world.heartbeat("a", HeartbeatKind.STAY, set())
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_heartbeat_that_changes_nothing_stores_nothing():
    world = await World().started()
    await world.join("a", client_id="c")
    ends = [replica.log.end_offset for replica in world.replicas]
    for _ in range(3):
        await world.heartbeat("a", HeartbeatKind.STAY, {0, 1, 2, 3})
    assert [replica.log.end_offset for replica in world.replicas] == ends


async def test_a_join_that_is_repeated_is_one_member():
    world = await World().started()
    for _ in range(2):
        assert world.has(await world.join("a")) == {0, 1, 2, 3}
    told = await world.answers.describe(GroupMemberRef(group="g"))
    assert [member.member for member in told.members] == ["a"]


async def test_heartbeats_at_the_same_time_do_not_fence_each_other():
    world = await World().started()
    await world.join("a")
    await world.join("b")
    beats = [world.heartbeat("a", HeartbeatKind.STAY, {0, 1}) for _ in range(5)]
    assert len({world.has(told) for told in await asyncio.gather(*beats)}) == 1


async def test_a_group_is_described_as_what_it_is():
    world = await World().started()

    async def told(group: str) -> GroupDescription:
        payload = await world.answers.handle_describe(NOBODY, encode(GroupMemberRef(group=group)))
        return decode(payload, GroupDescription)

    nobody = await told("n")
    assert not nobody.exists
    assert not nobody.is_taken
    await world.join("q", group="queue", is_queue=True)
    queue = await told("queue")
    assert queue.exists
    assert not queue.is_taken
    assert queue.members[0].is_queue
    await world.join("o", group="ordered")
    assert (await told("ordered")).is_taken
    await world.groups.join("classic")
    classic = await told("classic")
    assert classic.classic_members == 1
    assert classic.is_taken
    # Offsets alone are enough.
    partition = TopicPartition("t", PartitionIndex(0))
    await world.groups.groups.commit_offsets(
        "stored", [OffsetToCommit(partition=partition, offset=Offset(1))]
    )
    assert (await told("stored")).is_taken


async def test_offsets_go_forward_only():
    world = await World().started()
    await world.join("a")
    assert await world.commit("a", 5) == (ErrorCode.NONE, -1)
    assert await world.commit("a", 3) == (ErrorCode.NONE, 5)
    assert await world.commit("a", 5) == (ErrorCode.NONE, 5)
    assert await world.commit("a", 7) == (ErrorCode.NONE, 5)
    asked = GroupOffsetsRequest(group="g", partitions=[("t", 1), ("t", 0)])
    assert await world.answers.offsets(asked) == [-1, 7]


async def test_of_acks_at_the_same_time_the_highest_counts_in_whatever_order():
    world = await World().started()
    await world.join("a")
    for replica in world.replicas:
        replica.holds = True
    tasks = [asyncio.create_task(world.commit("a", offset)) for offset in (9, 4, 6)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        for replica in world.replicas:
            replica.commit()
    assert [task.result()[0] for task in tasks] == [ErrorCode.NONE] * 3
    assert await world.answers.offsets(GroupOffsetsRequest(group="g", partitions=[("t", 0)])) == [9]
    assert not world.answers._committing


async def test_only_who_has_a_partition_stores_its_offset():
    world = await World().started()
    await world.join("a")
    await world.join("b")
    kept = world.has(await world.heartbeat("a", HeartbeatKind.STAY, {0, 1, 2, 3}))
    (first, *_), (taken, *_) = sorted(kept), sorted({0, 1, 2, 3} - kept)
    # It is asked to let go of it, and has it still.
    assert (await world.commit("a", 1, taken))[0] is ErrorCode.NONE
    assert (await world.commit("b", 1, taken))[0] is ErrorCode.ILLEGAL_GENERATION
    await world.heartbeat("a", HeartbeatKind.STAY, set(kept))
    assert (await world.commit("a", 2, taken))[0] is ErrorCode.ILLEGAL_GENERATION
    assert (await world.commit("a", 2, first))[0] is ErrorCode.NONE
    await world.heartbeat("b", HeartbeatKind.STAY, set())
    assert await world.commit("b", 2, taken) == (ErrorCode.NONE, 1)
    with pytest.raises(RefusedError) as caught:
        await world.commit("stranger", 2)
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_ack_that_is_cancelled_while_it_waits_leaves_nothing_behind():
    world = await World().started()
    await world.join("a")
    for replica in world.replicas:
        replica.holds = True
    first = asyncio.create_task(world.commit("a", 1))
    await asyncio.sleep(0)
    second = asyncio.create_task(world.commit("a", 2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    for replica in world.replicas:
        replica.holds = False
        replica.commit()
    assert (await first)[0] is ErrorCode.NONE
    assert not world.answers._committing


async def test_a_peer_reports_a_member_that_left():
    world = await World().started()
    await world.answers.handle_member_left(NOBODY, encode(GroupMemberRef(group="g", member="m")))
    assert world.gone == [("g", "m")]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01\x02\x03", b"x" * 50])
async def test_what_cannot_be_read_is_refused(payload):
    world = await World().started()
    for answer in (
        world.answers.handle_heartbeat,
        world.answers.handle_commit,
        world.answers.handle_offsets,
        world.answers.handle_describe,
        world.answers.handle_member_left,
    ):
        with pytest.raises(RefusedError) as caught:
            await answer(NOBODY, payload)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


async def test_who_does_not_coordinate_says_so():
    world = await World().started()
    await world.join("a")
    for index in (0, 1):
        world.groups.depose(index)
    with pytest.raises(RefusedError) as caught:
        await world.heartbeat("a", HeartbeatKind.STAY, set())
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(RefusedError):
        await world.commit("a", 1)
    with pytest.raises(RefusedError):
        await world.answers.describe(GroupMemberRef(group="g"))
