"""Appends batches of HTTP and gRPC clients, on this broker or by an RPC to the leader.

Kafka clients find the leader by themselves. For other clients, any broker forwards the batches to
the leader and returns its response. If the leader does not respond, the result is uncertain.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from moldau.data.produce import ACKS_ALL, ProduceService
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod
from moldau.replica.raft_replica import wait_for_code

_MARGIN_SECONDS: Final = 1.0
"""For the network: the leader's own timeout should end first, as its error is more precise."""


class ForwardedAppend(msgspec.Struct, frozen=True, array_like=True):
    """One partition's batches, for the leader."""

    topic: str
    topic_id: bytes
    partition: int
    acks: int
    timeout_seconds: float
    batches: bytes


class AppendResult(NamedTuple):
    """The offset of the first record, or an error."""

    error: ErrorCode
    message: str = ""
    base_offset: int = -1
    is_uncertain: bool = False
    """The records may have been stored despite the error."""


class UncertainAppendError(RefusedError):
    """The batches may or may not be stored."""


_decode_append: Final = msgspec.msgpack.Decoder(ForwardedAppend).decode
_decode_reply: Final = msgspec.msgpack.Decoder(int | tuple[int, str]).decode
"""The offset; or code and message of an uncertain result."""
_UNCERTAIN_CODES: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


class AppendForwarder:
    def __init__(
        self,
        *,
        me: BrokerId,
        image: Callable[[], Image],
        leader_of: Callable[[Topic, int], Leader],
        produce: ProduceService,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._image = image
        self._leader_of = leader_of
        self._produce = produce
        self._caller = caller

    async def append(
        self, topic: Topic, partition: int, batches: bytes, *, acks: int, timeout_seconds: float
    ) -> AppendResult:
        """Returns when `acks` is satisfied. Never raises RefusedError."""
        request = ForwardedAppend(
            topic.name, topic.topic_id, partition, acks, timeout_seconds, batches
        )
        leader = self._leader_of(topic, partition).broker
        try:
            if leader == NO_LEADER_ID:
                raise RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"{topic.name}-{partition} has no leader at the moment",
                )
            if leader == self._me:
                offset = await self._append_locally(request)
            else:
                offset = await self._forward(leader, request)
        except RefusedError as error:
            is_uncertain = isinstance(error, UncertainAppendError)
            return AppendResult(error.code, str(error), is_uncertain=is_uncertain)
        return AppendResult(ErrorCode.NONE, "", offset)

    async def _forward(self, leader: BrokerId, request: ForwardedAppend) -> int:
        try:
            reply = await self._caller.call(
                leader,
                PeerMethod.APPEND,
                msgspec.msgpack.encode(request),
                request.timeout_seconds + _MARGIN_SECONDS,
            )
            found = _decode_reply(reply)
            if isinstance(found, int):
                return found
            raise UncertainAppendError(ErrorCode(found[0]), found[1])
        except (msgspec.MsgspecError, ValueError) as error:
            raise UncertainAppendError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"invalid response of the leader: {error}"
            ) from None
        except RefusedError as error:
            if error.code in _UNCERTAIN_CODES:
                raise UncertainAppendError(error.code, str(error)) from None
            raise

    async def _append_locally(self, request: ForwardedAppend) -> int:
        """Raises RefusedError."""
        proposal = self._produce.append(
            request.topic,
            request.partition,
            memoryview(bytearray(request.batches)),
            request.acks,
            is_single=False,
        )
        if request.acks == ACKS_ALL and not proposal.is_acknowledged():
            try:
                async with asyncio.timeout(request.timeout_seconds):
                    code = await wait_for_code(proposal.when_acknowledged)
            except TimeoutError:
                code = ErrorCode.REQUEST_TIMED_OUT
            if code is not ErrorCode.NONE:
                raise UncertainAppendError(
                    code, "appended, but not acknowledged by enough replicas: it may be lost"
                )
        return proposal.base_offset

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """The RPC handler of the leader. Raises RefusedError."""
        request = decode_request(_decode_append, payload)
        topic = self._image().topic(request.topic)
        if topic is None:
            # Unknown right after a start, or deleted: the sender retries and finds out.
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Topic '{request.topic}' is not led by this broker",
            )
        if topic.topic_id != request.topic_id:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{request.topic}' was deleted and recreated",
            )
        try:
            return msgspec.msgpack.encode(await self._append_locally(request))
        except UncertainAppendError as error:
            return msgspec.msgpack.encode((int(error.code), str(error)))
