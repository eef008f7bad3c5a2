"""Owns writes for doors whose clients know no leaders: batches go to the leader, wherever it is.

Kafka's clients find the leader by themselves. A client over HTTP is spared that: the broker that it
asks hands its batches on, and says what the leader answered. An answer that does not come leaves
open what happened; the client is told so.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from moldau.data.produce import ACKS_ALL, ProduceService
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

log = logging.getLogger(__name__)

APPEND_METHOD: Final = 22
_MARGIN_SECONDS: Final = 1.0
"""For the way there and back: the leader's own timeout says more."""


class ForwardedAppend(msgspec.Struct, frozen=True, array_like=True):
    """One partition's batches, for the leader."""

    topic: str
    topic_id: bytes
    partition: int
    acks: int
    timeout_seconds: float
    batches: bytes


class AppendResult(NamedTuple):
    """Where the first record went; or why it went nowhere, or perhaps somewhere."""

    error: ErrorCode
    message: str = ""
    base_offset: int = -1
    is_uncertain: bool = False
    """It may be there all the same."""


class UncertainAppendError(RefusedError):
    """It was appended, and may stay or be lost."""


class PeerCaller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


_decode_asked: Final = msgspec.msgpack.Decoder(ForwardedAppend).decode
_decode_reply: Final = msgspec.msgpack.Decoder(int | tuple[int, str]).decode
"""The offset; or a code and a message, of what is uncertain."""
_LOST_ON_THE_WAY: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


class AppendForwarder:
    """Appends here, or asks the leader to."""

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
        """Returns when the batches are as safe as `acks` asks. Never raises RefusedError."""
        asked = ForwardedAppend(
            topic.name, topic.topic_id, partition, acks, timeout_seconds, batches
        )
        leader = self._leader_of(topic, partition).broker
        try:
            if leader == NO_LEADER_ID:
                raise RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{partition} has no leader now"
                )
            if leader == self._me:
                offset = await self._append_here(asked)
            else:
                offset = await self._append_there(leader, asked)
        except RefusedError as error:
            is_uncertain = isinstance(error, UncertainAppendError)
            return AppendResult(error.code, str(error), is_uncertain=is_uncertain)
        return AppendResult(ErrorCode.NONE, "", offset)

    async def _append_there(self, leader: BrokerId, asked: ForwardedAppend) -> int:
        try:
            reply = await self._caller.call(
                leader,
                APPEND_METHOD,
                msgspec.msgpack.encode(asked),
                asked.timeout_seconds + _MARGIN_SECONDS,
            )
            found = _decode_reply(reply)
            if isinstance(found, int):
                return found
            raise UncertainAppendError(ErrorCode(found[0]), found[1])
        except (msgspec.MsgspecError, ValueError) as error:
            raise UncertainAppendError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the leader: {error}"
            ) from None
        except RefusedError as error:
            if error.code in _LOST_ON_THE_WAY:
                raise UncertainAppendError(error.code, str(error)) from None
            raise

    async def _append_here(self, asked: ForwardedAppend) -> int:
        """Raises RefusedError."""
        replica, proposal = self._produce.append(
            asked.topic, asked.partition, memoryview(bytearray(asked.batches)), asked.acks
        )
        if asked.acks == ACKS_ALL and not replica.is_acknowledged(proposal.end_offset):
            settled: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

            def settle(code: ErrorCode) -> None:
                if not settled.done():
                    settled.set_result(code)

            replica.when_acknowledged(proposal.end_offset, settle)
            try:
                async with asyncio.timeout(asked.timeout_seconds):
                    code = await settled
            except TimeoutError:
                code = ErrorCode.REQUEST_TIMED_OUT
            if code is not ErrorCode.NONE:
                raise UncertainAppendError(
                    code, "appended, but not known to be safe: it may be lost yet"
                )
        return proposal.base_offset

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers. Raises RefusedError."""
        try:
            asked = _decode_asked(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"batches: {error}") from None
        topic = self._image().topic(asked.topic)
        if topic is None:
            # Not heard of it yet, right after a start, or it is deleted: who asks finds out.
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Topic '{asked.topic}' is not led here"
            )
        if topic.topic_id != asked.topic_id:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{asked.topic}' is another one here"
            )
        try:
            return msgspec.msgpack.encode(await self._append_here(asked))
        except UncertainAppendError as error:
            return msgspec.msgpack.encode((int(error.code), str(error)))
