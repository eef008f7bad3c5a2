"""Owns the coordinator's side of the calls in `group_calls`: heartbeats, commits, looks at groups.

Members of the queue API know no epochs of Kafka's protocol: what a member says of itself is handed
in under the epoch that the coordinator has for it. What it may do follows from what it has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from moldau.control.topic_service import TopicService
from moldau.coordination.group_service import GroupService
from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.events import ConsumerHeartbeat, OffsetToCommit
from moldau.groups.results import ConsumerHeartbeatResult, DescribedConsumer
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicPartition
from moldau.queues.group_rpc_messages import (
    NO_OFFSET,
    GroupCommitRequest,
    GroupDescription,
    GroupMemberRef,
    GroupOffsetsRequest,
    HeartbeatKind,
    MemberDescription,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    OffsetCommitResult,
    decode,
    encode,
    packed,
    unpacked,
)

_TRIES_MAX: Final = 10
_PAUSE_SECONDS: Final = 0.02
_MOVED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH})
"""The member's epoch has risen between the look and the turn of the request."""
_INTERVAL_MS_MAX: Final = 2_000
"""New assignments and leaders are heard of by heartbeats, and a heartbeat of a stream is cheap."""
_JOIN_EPOCH: Final = 0
_LEAVE_EPOCH: Final = -1


class GroupRpcHandlers:
    """Answers for the groups that are coordinated here. Everything raises RefusedError."""

    def __init__(
        self,
        groups: GroupService,
        topics: TopicService,
        on_gone: Callable[[str, str], None],
    ) -> None:
        """`on_gone` hears of a member that has left elsewhere."""
        self._groups = groups
        self._topics = topics
        self._on_gone = on_gone
        self._committing: dict[tuple[str, str, int], tuple[asyncio.Lock, int]] = {}
        """By group, topic and partition, with the number of those who want it."""

    # ---- for the peers

    async def handle_heartbeat(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.beat(decode(payload, MemberHeartbeatRequest)))

    async def handle_member_left(self, sender: BrokerId, payload: bytes) -> bytes:
        told = decode(payload, GroupMemberRef)
        self._on_gone(told.group, told.member)
        return b""

    async def answer_commit(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.commit(decode(payload, GroupCommitRequest)))

    async def answer_offsets(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.offsets(decode(payload, GroupOffsetsRequest)))

    async def answer_describe(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.describe(decode(payload, GroupMemberRef)))

    # ---- members

    async def beat(self, asked: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        for _ in range(_TRIES_MAX):
            known = None
            if asked.kind is not HeartbeatKind.JOIN:
                known = self._groups.consumer(asked.group, asked.member)
                if known is None and asked.kind is HeartbeatKind.LEAVE:
                    return MemberHeartbeatResponse(interval_ms=0)
                if known is None:
                    raise _unknown(asked.group, asked.member)
            result = await self._groups.ask_for_member(
                asked.group, _heartbeat(asked, known), ConsumerHeartbeatResult
            )
            if result.error not in _MOVED:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            raise _busy(asked.member)
        if asked.kind is HeartbeatKind.LEAVE and result.error is ErrorCode.UNKNOWN_MEMBER_ID:
            return MemberHeartbeatResponse(interval_ms=0)
        if result.error is not ErrorCode.NONE:
            raise RefusedError(result.error, result.message or "")
        found = None
        if asked.kind is not HeartbeatKind.LEAVE:
            found = self._groups.consumer(asked.group, asked.member)
            if found is None:
                raise _unknown(asked.group, asked.member)
        return MemberHeartbeatResponse(
            interval_ms=min(result.heartbeat_interval_ms, _INTERVAL_MS_MAX),
            told=None if found is None else _told(found),
        )

    async def describe(self, asked: GroupMemberRef) -> GroupDescription:
        offsets = self._groups.known_offsets(asked.group)
        _check(offsets.error)
        consumers = self._groups.describe_consumers(asked.group)
        classic = self._groups.describe(asked.group)
        for error in (consumers.error, classic.error):
            if error is not ErrorCode.GROUP_ID_NOT_FOUND:
                _check(error)
        return GroupDescription(
            members=[_told(member) for member in consumers.members],
            classic_members=len(classic.members),
            has_offsets=bool(offsets.offsets) or bool(offsets.unstable),
        )

    # ---- offsets

    async def offsets(self, asked: GroupOffsetsRequest) -> list[int]:
        """What is committed, or -1, in the order of the question."""
        wanted = [TopicPartition(topic, PartitionIndex(at)) for topic, at in asked.partitions]
        found = await self._groups.fetch_offsets(asked.group, wanted)
        _check(found.error)
        return [found.offsets[one].offset if one in found.offsets else NO_OFFSET for one in wanted]

    async def commit(self, asked: GroupCommitRequest) -> list[OffsetCommitResult]:
        """Forward only, and only what the member has. In the order of the question."""
        keys = sorted({(asked.group, topic, index) for topic, index, _ in asked.offsets})
        async with self._alone(keys):
            for _ in range(_TRIES_MAX):
                told = await self._commit_once(asked)
                if not any(one.error in _MOVED for one in told):
                    return told
                await asyncio.sleep(_PAUSE_SECONDS)
        raise _busy(asked.member)

    async def _commit_once(self, asked: GroupCommitRequest) -> list[OffsetCommitResult]:
        member = self._groups.consumer(asked.group, asked.member)
        if member is None:
            raise _unknown(asked.group, asked.member)
        known = self._groups.known_offsets(asked.group)
        _check(known.error)
        told: list[OffsetCommitResult] = []
        places: list[int] = []
        to_store: list[OffsetToCommit] = []
        for topic, index, offset in asked.offsets:
            partition = TopicPartition(topic, PartitionIndex(index))
            before = known.offsets[partition].offset if partition in known.offsets else NO_OFFSET
            if not self._has(member, topic, index):
                told.append(OffsetCommitResult(ErrorCode.ILLEGAL_GENERATION, before))
                continue
            told.append(OffsetCommitResult(ErrorCode.NONE, before))
            if offset > before:
                places.append(len(told) - 1)
                to_store.append(OffsetToCommit(partition=partition, offset=Offset(offset)))
        if to_store:
            # A partition is given on only after the epoch of who had it has risen: what it loses
            # between the look and the turn of this is refused by it.
            errors = await self._groups.commit_offsets(
                asked.group, to_store, member_id=asked.member, generation=member.epoch
            )
            for place, error in zip(places, errors, strict=True):
                told[place] = OffsetCommitResult(error, told[place].before)
        return told

    def _has(self, member: DescribedConsumer, topic: str, index: int) -> bool:
        found = self._topics.image.topic(topic)
        if found is None:
            return False
        return index in member.assigned.get(found.topic_id, ()) or index in member.revoking.get(
            found.topic_id, ()
        )

    @asynccontextmanager
    async def _alone(self, keys: list[tuple[str, str, int]]) -> AsyncIterator[None]:
        """Nobody else looks at these and commits them meanwhile: the lower of two offsets would
        win if it came last. Always in one order, so that no two wait for each other."""
        taken: list[tuple[tuple[str, str, int], asyncio.Lock]] = []
        try:
            for key in keys:
                lock, users = self._committing.get(key) or (asyncio.Lock(), 0)
                self._committing[key] = lock, users + 1
                try:
                    await lock.acquire()
                except asyncio.CancelledError:
                    self._let_go(key)
                    raise
                taken.append((key, lock))
            yield
        finally:
            for key, lock in taken:
                lock.release()
                self._let_go(key)

    def _let_go(self, key: tuple[str, str, int]) -> None:
        lock, users = self._committing[key]
        if users > 1:
            self._committing[key] = lock, users - 1
        else:
            del self._committing[key]


def _heartbeat(
    asked: MemberHeartbeatRequest, known: DescribedConsumer | None
) -> Callable[[int], ConsumerHeartbeat]:
    owned = None if asked.owned is None else unpacked(asked.owned)
    if known is None:
        return lambda request_id: ConsumerHeartbeat(
            request_id=request_id,
            group_id=asked.group,
            member_id=asked.member,
            member_epoch=_JOIN_EPOCH,
            client_id=asked.client_id,
            rebalance_timeout_ms=asked.session_timeout_ms,
            topics=asked.topics,
            assignor=QUEUE_ASSIGNOR if asked.is_queue else None,
            owned={},
            makes_member_id=True,
            session_timeout_ms=asked.session_timeout_ms,
        )
    epoch = _LEAVE_EPOCH if asked.kind is HeartbeatKind.LEAVE else known.epoch
    return lambda request_id: ConsumerHeartbeat(
        request_id=request_id,
        group_id=asked.group,
        member_id=asked.member,
        member_epoch=epoch,
        client_id=known.client_id,
        client_host=known.client_host,
        owned=owned,
        makes_member_id=True,
    )


def _told(member: DescribedConsumer) -> MemberDescription:
    return MemberDescription(
        member=member.member_id,
        topics=member.topics,
        is_queue=member.assignor == QUEUE_ASSIGNOR,
        assigned=packed(member.assigned),
        revoking=packed(member.revoking),
    )


def _check(error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        raise RefusedError(error)


def _busy(member: str) -> RefusedError:
    return RefusedError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, f"what {member!r} said before is not stored yet"
    )


def _unknown(group: str, member: str) -> RefusedError:
    return RefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"{member!r} is no consumer of group {group!r}"
    )
