"""Owns how a group's coordinator is asked, wherever it is.

Everything that is asked may be asked twice: members name themselves, and offsets only go forward.
So whatever was not answered is asked again, for a bounded time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from moldau.coordination.group_service import GroupService
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicPartition
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.group_rpc_messages import (
    COMMIT_METHOD,
    DESCRIBE_METHOD,
    HEARTBEAT_METHOD,
    MEMBER_LEFT_METHOD,
    OFFSETS_METHOD,
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
from moldau.queues.types import ErrorReason, QueueRefusedError

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

_ASK_SECONDS_MAX: Final = 10.0
"""As long as an election and a loading take, with some room."""
_CALL_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_GONE_SECONDS: Final = 2.0

_PASSING: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_WHY: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorReason.UNKNOWN_CONSUMER,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorReason.OTHER_MODE,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: ErrorReason.OTHER_MODE,
    ErrorCode.INVALID_GROUP_ID: ErrorReason.INVALID_ARGUMENT,
    ErrorCode.INVALID_REQUEST: ErrorReason.INVALID_ARGUMENT,
    ErrorCode.GROUP_MAX_SIZE_REACHED: ErrorReason.BUSY,
}


class Caller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class GroupRpcClient:
    """Asks coordinators. Everything raises QueueRefusedError."""

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        groups: GroupService,
        answers: GroupRpcHandlers,
        caller: Caller,
        peers: Callable[[], Iterable[BrokerId]],
    ) -> None:
        """`peers` are those that can be reached."""
        self._me = me
        self._clock = clock
        self._groups = groups
        self._answers = answers
        self._caller = caller
        self._peers = peers

    async def beat(self, asked: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        return await self._ask(
            asked.group, HEARTBEAT_METHOD, asked, self._answers.beat, MemberHeartbeatResponse
        )

    async def describe(self, group: str) -> GroupDescription:
        asked = GroupMemberRef(group=group)
        return await self._ask(
            group, DESCRIBE_METHOD, asked, self._answers.describe, GroupDescription
        )

    async def offsets(self, group: str, partitions: Sequence[TopicPartition]) -> list[int]:
        """What is committed, or -1."""
        asked = GroupOffsetsRequest(
            group=group, partitions=[(topic, index) for topic, index in partitions]
        )
        return await self._ask(group, OFFSETS_METHOD, asked, self._answers.offsets, list[int])

    async def commit(
        self, group: str, member: str, offsets: Sequence[tuple[TopicPartition, int]]
    ) -> list[OffsetCommitResult]:
        """Forward only, and only what the member has; in order."""
        asked = GroupCommitRequest(
            group=group,
            member=member,
            offsets=[(topic, index, offset) for (topic, index), offset in offsets],
        )
        return await self._ask(
            group, COMMIT_METHOD, asked, self._answers.commit, list[OffsetCommitResult]
        )

    async def announce_member_left(self, group: str, member: str) -> None:
        """Let the other brokers know that a member has left; those who do not hear of it find out
        a moment later."""
        payload = encode(GroupMemberRef(group=group, member=member))
        outcomes = await asyncio.gather(
            *(
                self._caller.call(peer, MEMBER_LEFT_METHOD, payload, _GONE_SECONDS)
                for peer in self._peers()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, RefusedError):
                log.debug("a peer was not told that %s left %s: %s", member, group, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _ask(
        self,
        group: str,
        method: int,
        asked: A,
        answer: Callable[[A], Awaitable[T]],
        kind: type[T],
    ) -> T:
        deadline = self._clock.monotonic() + _ASK_SECONDS_MAX
        while True:
            try:
                broker = await self._groups.find_coordinator(group)
                if broker == self._me:
                    return await answer(asked)
                reply = await self._caller.call(broker, method, encode(asked), _CALL_SECONDS)
                return decode(reply, kind)
            except RefusedError as error:
                if error.code not in _PASSING:
                    raise QueueRefusedError(
                        _WHY.get(error.code, ErrorReason.UNAVAILABLE), error.message
                    ) from None
                if self._clock.monotonic() > deadline:
                    raise QueueRefusedError(
                        ErrorReason.UNAVAILABLE,
                        f"the coordinator of group {group!r} does not answer: {error}",
                    ) from None
            await asyncio.sleep(_PAUSE_SECONDS)
