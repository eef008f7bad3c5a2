"""Calls the coordinator of a group, on whichever broker it is.

All requests are idempotent: consumers choose their own ids, and offsets only increase. So a request
that gets no response is retried, up to a deadline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from moldau.coordination.group_service import GroupService
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicPartition
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.group_rpc_messages import (
    GroupCommitRequest,
    GroupDescription,
    GroupMemberRef,
    GroupOffsetsRequest,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    OffsetCommitResult,
    decode,
    encode,
)
from moldau.queues.types import ErrorReason, QueueRefusedError, unavailable

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

_RETRY_SECONDS_MAX: Final = 10.0
"""Longer than an election and a load take."""
_CALL_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_ANNOUNCE_SECONDS: Final = 2.0

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Fewer than `is_unavailable`: a full disk or too few replicas are reported at once."""
_REASON_BY_CODE: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorReason.UNKNOWN_CONSUMER,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorReason.OTHER_MODE,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: ErrorReason.OTHER_MODE,
    ErrorCode.INVALID_GROUP_ID: ErrorReason.INVALID_ARGUMENT,
    ErrorCode.INVALID_REQUEST: ErrorReason.INVALID_ARGUMENT,
    ErrorCode.GROUP_MAX_SIZE_REACHED: ErrorReason.BUSY,
}


class GroupRpcClient:
    """Client of group coordinators. Methods raise QueueRefusedError."""

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        groups: GroupService,
        handlers: GroupRpcHandlers,
        caller: PeerCaller,
        peers: Callable[[], Iterable[BrokerId]],
    ) -> None:
        """`peers` returns the connected brokers."""
        self._me = me
        self._clock = clock
        self._groups = groups
        self._local = handlers
        self._caller = caller
        self._peers = peers

    async def heartbeat(self, request: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        return await self._call(
            request.group,
            PeerMethod.QUEUE_HEARTBEAT,
            request,
            self._local.heartbeat,
            MemberHeartbeatResponse,
        )

    async def describe(self, group: str) -> GroupDescription:
        request = GroupMemberRef(group=group)
        return await self._call(
            group, PeerMethod.QUEUE_DESCRIBE, request, self._local.describe, GroupDescription
        )

    async def offsets(self, group: str, partitions: Sequence[TopicPartition]) -> list[int]:
        """Committed offsets, or -1."""
        request = GroupOffsetsRequest(group=group, partitions=list(partitions))
        return await self._call(
            group, PeerMethod.QUEUE_OFFSETS, request, self._local.offsets, list[int]
        )

    async def commit(
        self, group: str, member: str, offsets: Sequence[tuple[TopicPartition, int]]
    ) -> list[OffsetCommitResult]:
        """Offsets only increase, and the member must own the partition; results in order."""
        request = GroupCommitRequest(
            group=group,
            member=member,
            offsets=[(topic, index, offset) for (topic, index), offset in offsets],
        )
        return await self._call(
            group, PeerMethod.QUEUE_COMMIT, request, self._local.commit, list[OffsetCommitResult]
        )

    async def announce_member_left(self, group: str, member: str) -> None:
        """Notify the other brokers that a member left; one that misses it learns so by its next
        refresh."""
        payload = encode(GroupMemberRef(group=group, member=member))
        outcomes = await asyncio.gather(
            *(
                self._caller.call(peer, PeerMethod.QUEUE_MEMBER_LEFT, payload, _ANNOUNCE_SECONDS)
                for peer in self._peers()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, RefusedError):
                log.debug("cannot notify a peer that %s left group %s: %s", member, group, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _call(
        self,
        group: str,
        method: int,
        request: A,
        handle_locally: Callable[[A], Awaitable[T]],
        kind: type[T],
    ) -> T:
        deadline = self._clock.monotonic() + _RETRY_SECONDS_MAX
        while True:
            try:
                broker = await self._groups.find_coordinator(group)
                if broker == self._me:
                    return await handle_locally(request)
                response = await self._caller.call(broker, method, encode(request), _CALL_SECONDS)
                return decode(response, kind)
            except RefusedError as error:
                if error.code not in _RETRIABLE:
                    raise QueueRefusedError(
                        _REASON_BY_CODE.get(error.code, ErrorReason.UNAVAILABLE), error.message
                    ) from None
                if self._clock.monotonic() > deadline:
                    raise unavailable(
                        f"the coordinator of group {group!r} does not respond: {error}"
                    ) from None
            await asyncio.sleep(_PAUSE_SECONDS)
