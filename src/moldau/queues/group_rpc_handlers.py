"""The coordinator's handlers of group RPCs: heartbeats, commits, offsets, descriptions.

Members of the queue API do not know the epochs of Kafka's protocol: their requests are passed on
with the epoch that the coordinator has for the member.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from moldau.control.topic_service import TopicService
from moldau.coordination.group_service import GroupService
from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.consumer.records import JOIN_EPOCH, LEAVE_EPOCH
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
    pack_partitions,
    unpack_partitions,
)

_TRIES_MAX: Final = 10
_PAUSE_SECONDS: Final = 0.02
_EPOCH_CHANGED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH})
"""The member's epoch changed between its lookup and the request."""
_INTERVAL_MS_MAX: Final = 2_000
"""Heartbeats deliver new assignments and leaders, and are cheap in a stream."""


class GroupRpcHandlers:
    """Handles requests for the groups that this broker coordinates. Methods raise RefusedError."""

    def __init__(
        self, groups: GroupService, topics: TopicService, on_member_left: Callable[[str, str], None]
    ) -> None:
        """`on_member_left` is called for a member that disconnected from another broker."""
        self._groups = groups
        self._topics = topics
        self._on_member_left = on_member_left
        self._committing: dict[tuple[str, str, int], tuple[asyncio.Lock, int]] = {}
        """Lock and number of its users, by group, topic and partition."""

    # ---- RPCs of peers

    async def handle_heartbeat(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.heartbeat(decode(payload, MemberHeartbeatRequest)))

    async def handle_member_left(self, sender: BrokerId, payload: bytes) -> bytes:
        left = decode(payload, GroupMemberRef)
        self._on_member_left(left.group, left.member)
        return b""

    async def handle_commit(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.commit(decode(payload, GroupCommitRequest)))

    async def handle_offsets(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.offsets(decode(payload, GroupOffsetsRequest)))

    async def handle_describe(self, sender: BrokerId, payload: bytes) -> bytes:
        return encode(await self.describe(decode(payload, GroupMemberRef)))

    # ---- members

    async def heartbeat(self, request: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        for _ in range(_TRIES_MAX):
            known = None
            if request.kind is not HeartbeatKind.JOIN:
                known = self._groups.consumer(request.group, request.member)
                if known is None and request.kind is HeartbeatKind.LEAVE:
                    return MemberHeartbeatResponse(interval_ms=0)
                if known is None:
                    raise _unknown(request.group, request.member)
            result = await self._groups.submit_for_member(
                request.group, _heartbeat(request, known), ConsumerHeartbeatResult
            )
            if result.error not in _EPOCH_CHANGED:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            raise _not_committed_yet(request.member)
        if request.kind is HeartbeatKind.LEAVE and result.error is ErrorCode.UNKNOWN_MEMBER_ID:
            return MemberHeartbeatResponse(interval_ms=0)
        if result.error is not ErrorCode.NONE:
            raise RefusedError(result.error, result.message or "")
        found = None
        if request.kind is not HeartbeatKind.LEAVE:
            found = self._groups.consumer(request.group, request.member)
            if found is None:
                raise _unknown(request.group, request.member)
        return MemberHeartbeatResponse(
            interval_ms=min(result.heartbeat_interval_ms, _INTERVAL_MS_MAX),
            member=None if found is None else _describe(found),
        )

    async def describe(self, request: GroupMemberRef) -> GroupDescription:
        offsets = self._groups.known_offsets(request.group)
        _check(offsets.error)
        consumers = self._groups.describe_consumers(request.group)
        classic = self._groups.describe(request.group)
        for error in (consumers.error, classic.error):
            if error is not ErrorCode.GROUP_ID_NOT_FOUND:
                _check(error)
        return GroupDescription(
            members=[_describe(member) for member in consumers.members],
            classic_members=len(classic.members),
            has_offsets=bool(offsets.offsets) or bool(offsets.unstable),
        )

    # ---- offsets

    async def offsets(self, request: GroupOffsetsRequest) -> list[int]:
        """Committed offsets or -1, in the order of the request."""
        wanted = [TopicPartition(topic, PartitionIndex(at)) for topic, at in request.partitions]
        found = await self._groups.fetch_offsets(request.group, wanted)
        _check(found.error)
        return [found.offsets[one].offset if one in found.offsets else NO_OFFSET for one in wanted]

    async def commit(self, request: GroupCommitRequest) -> list[OffsetCommitResult]:
        """Offsets only increase, and the member must own the partition; results in order."""
        keys = sorted({(request.group, topic, index) for topic, index, _ in request.offsets})
        async with self._locked(keys):
            for _ in range(_TRIES_MAX):
                results = await self._commit_once(request)
                if not any(one.error in _EPOCH_CHANGED for one in results):
                    return results
                await asyncio.sleep(_PAUSE_SECONDS)
        raise _not_committed_yet(request.member)

    async def _commit_once(self, request: GroupCommitRequest) -> list[OffsetCommitResult]:
        member = self._groups.consumer(request.group, request.member)
        if member is None:
            raise _unknown(request.group, request.member)
        known = self._groups.known_offsets(request.group)
        _check(known.error)
        results: list[OffsetCommitResult] = []
        positions: list[int] = []
        to_store: list[OffsetToCommit] = []
        for topic, index, offset in request.offsets:
            partition = TopicPartition(topic, PartitionIndex(index))
            before = known.offsets[partition].offset if partition in known.offsets else NO_OFFSET
            if not self._is_assigned(member, topic, index):
                results.append(OffsetCommitResult(ErrorCode.ILLEGAL_GENERATION, before))
                continue
            results.append(OffsetCommitResult(ErrorCode.NONE, before))
            if offset > before:
                positions.append(len(results) - 1)
                to_store.append(OffsetToCommit(partition=partition, offset=Offset(offset)))
        if to_store:
            # A partition is reassigned only after its owner's epoch has changed: if the member lost
            # it since the check above, this commit is rejected by its epoch.
            errors = await self._groups.commit_offsets(
                request.group, to_store, member_id=request.member, generation=member.epoch
            )
            for position, error in zip(positions, errors, strict=True):
                results[position] = OffsetCommitResult(error, results[position].before)
        return results

    def _is_assigned(self, member: DescribedConsumer, topic: str, index: int) -> bool:
        found = self._topics.image.topic(topic)
        if found is None:
            return False
        return index in member.assigned.get(found.topic_id, ()) or index in member.revoking.get(
            found.topic_id, ()
        )

    @asynccontextmanager
    async def _locked(self, keys: list[tuple[str, str, int]]) -> AsyncIterator[None]:
        """Locks these partitions from reading their offsets to committing: a lower offset must not
        overwrite a higher one. Keys are sorted, so that no deadlock can occur."""
        acquired: list[tuple[tuple[str, str, int], asyncio.Lock]] = []
        try:
            for key in keys:
                lock, users = self._committing.get(key) or (asyncio.Lock(), 0)
                self._committing[key] = lock, users + 1
                try:
                    await lock.acquire()
                except asyncio.CancelledError:
                    self._release(key)
                    raise
                acquired.append((key, lock))
            yield
        finally:
            for key, lock in acquired:
                lock.release()
                self._release(key)

    def _release(self, key: tuple[str, str, int]) -> None:
        lock, users = self._committing[key]
        if users > 1:
            self._committing[key] = lock, users - 1
        else:
            del self._committing[key]


def _heartbeat(
    request: MemberHeartbeatRequest, known: DescribedConsumer | None
) -> Callable[[int], ConsumerHeartbeat]:
    owned = None if request.owned is None else unpack_partitions(request.owned)
    if known is None:
        return lambda request_id: ConsumerHeartbeat(
            request_id=request_id,
            group_id=request.group,
            member_id=request.member,
            member_epoch=JOIN_EPOCH,
            client_id=request.client_id,
            rebalance_timeout_ms=request.session_timeout_ms,
            topics=request.topics,
            assignor=QUEUE_ASSIGNOR if request.is_queue else None,
            owned={},
            makes_member_id=True,
            session_timeout_ms=request.session_timeout_ms,
        )
    epoch = LEAVE_EPOCH if request.kind is HeartbeatKind.LEAVE else known.epoch
    return lambda request_id: ConsumerHeartbeat(
        request_id=request_id,
        group_id=request.group,
        member_id=request.member,
        member_epoch=epoch,
        client_id=known.client_id,
        client_host=known.client_host,
        owned=owned,
        makes_member_id=True,
    )


def _describe(member: DescribedConsumer) -> MemberDescription:
    return MemberDescription(
        member=member.member_id,
        topics=member.topics,
        is_queue=member.assignor == QUEUE_ASSIGNOR,
        assigned=pack_partitions(member.assigned),
        revoking=pack_partitions(member.revoking),
    )


def _check(error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        raise RefusedError(error)


def _not_committed_yet(member: str) -> RefusedError:
    return RefusedError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"the previous request of consumer {member!r} is not committed yet: retry",
    )


def _unknown(group: str, member: str) -> RefusedError:
    return RefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"unknown consumer {member!r} of group {group!r}"
    )
