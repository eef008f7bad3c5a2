"""Owns where queues are stored: the ledgers that this broker hosts, and the door to all of them.

A queue is stored in the partition of `__queue_state` that its name hashes to; the leader of that
partition keeps the ledger. Who leads the queue itself may be another broker: it asks through here,
and is not told a thing before it is committed. A write whose answer does not come leaves open what
became of it, and is never sent again: whoever wrote loads the queue anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_service import CoordinatorService, java_hash
from moldau.data.partitions import HostedPartition, Partitions
from moldau.groups.queue.ledger import Stored
from moldau.groups.queue.records import RecordHead, decode_head, encode, queue_key
from moldau.groups.queue.results import Refusal
from moldau.groups.queue.state import QueueId, QueueRecord
from moldau.metadata.image import QUEUE_STATE_TOPIC, Image, Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.net.peers.rpc import NotSentError, PeerRpc
from moldau.queues.ledger_host import ANSWER_SECONDS, LedgerHost
from moldau.queues.ledger_scheduler import ForgetQueue, ReadStored, WriteRecords

log = logging.getLogger(__name__)

T = TypeVar("T")

STORED_METHOD: Final = 30
WRITE_METHOD: Final = 31
FORGET_METHOD: Final = 32

_RETRY_SECONDS: Final = 5.0
"""As long as an election and a loading take, with some room."""
_PAUSE_SECONDS: Final = 0.05
_MARGIN_SECONDS: Final = 1.0
"""For the way there and back: the ledger's own timeout says more."""
_OPEN_PER_PEER_MAX: Final = 32
"""Half of what a peer works on at once: there are other things to ask it."""
_IMAGE_RETRY_SECONDS: Final = 5.0

_NOTHING_DONE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Said only where nothing was written, here and by peers: it may be asked again."""
_UNKNOWN_FATE: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})
"""Of the answer, or of a write."""


class LedgerRefusedError(MoldauError):
    """Nothing was written: `refusal` is FENCED or OUT_OF_STEP.

    Who is fenced leads the queue no more; who is out of step loads it anew.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class LedgerRequest(msgspec.Struct, frozen=True, array_like=True):
    """About one queue; records only for a write."""

    group: str
    topic_id: bytes
    partition: int
    records: tuple[tuple[bytes, bytes], ...] = ()


class Caller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


_decode_asked: Final = msgspec.msgpack.Decoder(LedgerRequest).decode
_decode_stored: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_decode_refusal: Final = msgspec.msgpack.Decoder(str).decode


class Ledgers(CoordinatorService[LedgerHost]):
    """The ledgers of this broker, and the way to those of the others.

    `fresh_image` returns an image that holds everything that was committed when it was called; it
    raises RefusedError while there is none to be had.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Partitions,
        topics: TopicService,
        state_partitions: int,
        broker: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
        fresh_image: Callable[[], Awaitable[Image]],
        on_internal_error: Callable[[BaseException], None],
        caller: Caller,
    ) -> None:
        super().__init__(
            loop=loop,
            clock=clock,
            topic=QUEUE_STATE_TOPIC,
            partitions_wanted=state_partitions,
            partitions=partitions,
            topics=topics,
            broker=broker,
            leader_of=leader_of,
            on_internal_error=on_internal_error,
        )
        self._fresh_image = fresh_image
        self._caller = caller
        self._rooms: dict[BrokerId, asyncio.Semaphore] = {}

    def _new_coordinator(self, index: int, hosted: HostedPartition) -> LedgerHost:
        return LedgerHost(
            loop=self._loop,
            clock=self._clock,
            replica=hosted.replica,
            turns=self._turns,
            on_lost=partial(self._lost, index, hosted),
        )

    # ---- the door

    async def stored(self, queue: QueueId) -> list[Stored]:
        """Keys and values of all that counts; empty for a queue that is new. Raises RefusedError.

        All writes that were answered before are in it, whoever answered them.
        """
        asked = _asked(queue)

        async def ask(broker: BrokerId) -> list[Stored]:
            if broker == self._broker:
                return await self._stored_here(queue)
            reply = await self._call(broker, queue, STORED_METHOD, asked)
            try:
                return _decode_stored(reply)
            except msgspec.MsgspecError as error:
                raise _misunderstood(error) from None

        return await self._until_answered(queue, ask, is_repeatable=True)

    async def write(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        """Returns when the records are committed, all of them.

        Raises LedgerRefusedError if they do not follow what is stored; then nothing was written.
        Raises RefusedError if nobody could be asked, or the answer is lost: perhaps it was.
        """
        encoded = tuple(encode(record) for record in records)
        asked = _asked(queue, encoded)

        async def ask(broker: BrokerId) -> Refusal:
            if broker == self._broker:
                return await self._write_here(queue, encoded)
            reply = await self._call(broker, queue, WRITE_METHOD, asked)
            try:
                return Refusal[_decode_refusal(reply)]
            except (msgspec.MsgspecError, KeyError) as error:
                raise _misunderstood(error) from None

        refusal = await self._until_answered(queue, ask, is_repeatable=False)
        if refusal is not Refusal.NONE:
            raise LedgerRefusedError(refusal)

    async def forget(self, queue: QueueId) -> None:
        """Returns when nothing is stored of the queue any more. Raises RefusedError."""
        asked = _asked(queue)

        async def ask(broker: BrokerId) -> None:
            if broker == self._broker:
                await self._forget_here(queue)
            else:
                await self._call(broker, queue, FORGET_METHOD, asked)

        await self._until_answered(queue, ask, is_repeatable=True)

    async def _until_answered(
        self,
        queue: QueueId,
        ask: Callable[[BrokerId], Awaitable[T]],
        *,
        is_repeatable: bool,
    ) -> T:
        """Ask whoever keeps the ledger, again for a while if that does no harm.

        What is not `is_repeatable` is asked again only where nothing was done for it.
        """
        name = _name(queue)
        give_up_at = self._loop.time() + _RETRY_SECONDS
        while True:
            try:
                return await ask(await self.find_coordinator(name))
            except RefusedError as error:
                is_harmless = isinstance(error, NotSentError) or error.code in _NOTHING_DONE
                may_help = is_harmless or (is_repeatable and error.code in _UNKNOWN_FATE)
                if not may_help or self._is_stopping or self._loop.time() >= give_up_at:
                    raise
                log.debug("the ledger of %s is asked again: %s", name, error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(self, broker: BrokerId, queue: QueueId, method: int, payload: bytes) -> bytes:
        """Raises RefusedError."""
        room = self._rooms.setdefault(broker, asyncio.Semaphore(_OPEN_PER_PEER_MAX))
        async with room:
            if not self._is_kept_by(broker, queue):
                # Nobody shall stand in line for a broker that stands still, and wait for its
                # silence one after the other, when another one was elected long ago.
                raise RefusedError(
                    ErrorCode.NOT_COORDINATOR, f"broker {broker} keeps that ledger no more"
                )
            return await self._caller.call(
                broker, method, payload, ANSWER_SECONDS + _MARGIN_SECONDS
            )

    def _is_kept_by(self, broker: BrokerId, queue: QueueId) -> bool:
        """As far as is known here."""
        topic = self._topics.image.topic(self._topic)
        if topic is None:
            return False
        index = java_hash(_name(queue)) % len(topic.partitions)
        return self._leader_of(topic, index).broker == broker

    # ---- ledgers of this broker

    async def _stored_here(self, queue: QueueId) -> list[Stored]:
        keeper = self._coordinator_of(_name(queue))
        try:
            # One that stood still for a while would tell what was stored before another took over.
            await keeper.replica.confirm_leadership()
        except RefusedError as error:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, str(error)) from None
        found = await keeper.ask(lambda request_id: ReadStored(request_id, queue))
        return [] if isinstance(found, Refusal) else list(found)

    async def _write_here(self, queue: QueueId, records: tuple[Stored, ...]) -> Refusal:
        keeper = self._coordinator_of(_name(queue))
        result = await keeper.ask(lambda request_id: WriteRecords(request_id, queue, records))
        return result if isinstance(result, Refusal) else Refusal.NONE

    async def _forget_here(self, queue: QueueId) -> None:
        keeper = self._coordinator_of(_name(queue))
        await keeper.ask(partial(_forget_event, queue))

    # ---- for the peers

    def serve(self, rpc: PeerRpc) -> None:
        rpc.serve(STORED_METHOD, self.handle_stored)
        rpc.serve(WRITE_METHOD, self.handle_write)
        rpc.serve(FORGET_METHOD, self.handle_forget)

    async def handle_stored(self, sender: BrokerId, payload: bytes) -> bytes:
        """Raises RefusedError."""
        queue, _ = _understood(payload)
        return msgspec.msgpack.encode(await self._stored_here(queue))

    async def handle_write(self, sender: BrokerId, payload: bytes) -> bytes:
        """Raises RefusedError."""
        queue, records = _understood(payload)
        refusal = await self._write_here(queue, records)
        return msgspec.msgpack.encode(refusal.name)

    async def handle_forget(self, sender: BrokerId, payload: bytes) -> bytes:
        """Raises RefusedError."""
        queue, _ = _understood(payload)
        await self._forget_here(queue)
        return b""

    # ---- topics that are gone

    async def _loaded(self, coordinator: LedgerHost) -> None:
        while True:
            coordinator.topics_deleted.clear()
            await self._drop_deleted_topics(coordinator)
            await coordinator.topics_deleted.wait()

    def topics_deleted(self) -> None:
        """The image lacks topics now that it had."""
        for keeper in self._coordinators.values():
            keeper.topics_deleted.set()

    async def _drop_deleted_topics(self, keeper: LedgerHost) -> None:
        """Forget their queues: nobody is left to say so.

        Only a fresh image proves that a topic is gone: one that lags behind also lacks topics that
        are new. Its id never comes again. The queues are listed first: while the image is under
        way, a topic may be made that it does not know, with a queue and its first acks.
        """
        queues = list(keeper.desk.queues())
        if not queues:
            return
        while True:
            try:
                image = await self._fresh_image()
            except RefusedError:
                await asyncio.sleep(_IMAGE_RETRY_SECONDS)
            else:
                break
        for queue in queues:
            if queue.topic_id in image.topics_by_id:
                continue
            try:
                await keeper.ask(partial(_forget_event, queue))
            except RefusedError as error:
                # It takes up some room until the next loading.
                log.warning("a queue of a deleted topic stays: %s", error)


def _name(queue: QueueId) -> str:
    """What a queue is placed by. A part of the stored format: it must never change."""
    return f"{queue.group}/{queue.topic_id.hex()}/{queue.partition}"


def _asked(queue: QueueId, records: tuple[Stored, ...] = ()) -> bytes:
    """Raises RefusedError for a name that cannot be stored."""
    queue_key(queue)
    return msgspec.msgpack.encode(
        LedgerRequest(queue.group, queue.topic_id, queue.partition, records)
    )


def _understood(payload: bytes) -> tuple[QueueId, tuple[Stored, ...]]:
    """Raises RefusedError: bytes that are no records of that queue must not reach a log."""
    try:
        asked = _decode_asked(payload)
        heads = [decode_head(*record) for record in asked.records]
    except (msgspec.MsgspecError, CorruptionError) as error:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"about a queue: {error}") from None
    queue = QueueId(asked.group, TopicId(asked.topic_id), PartitionIndex(asked.partition))
    if not all(isinstance(head, RecordHead) and head.queue == queue for head in heads):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a record of another queue")
    return queue, asked.records


def _forget_event(queue: QueueId, request_id: int) -> ForgetQueue:
    return ForgetQueue(request_id, queue)


def _misunderstood(error: Exception) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the ledger's broker: {error}")
