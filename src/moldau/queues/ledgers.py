"""Storage of queues: the ledgers that this broker hosts, and access to those of other brokers.

A queue is stored in the `__queue_state` partition that its name hashes to; the leader of that
partition hosts the ledger, and replies only after the commit. The leader of the queue itself may be
another broker, and uses this module. If the response to a write is lost, it is unknown whether it
was committed; it is never sent again, and the writer reloads the queue.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Final, TypeVar, Unpack

import msgspec

from moldau.coordination.coordinator_service import CoordinatorService, ServiceParts, wait_for_image
from moldau.data.partitions import HostedPartition
from moldau.leases.ledger import Stored
from moldau.leases.records import RecordHead, decode_head, encode, queue_key
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId, QueueRecord
from moldau.metadata.image import QUEUE_STATE_TOPIC, Image
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import NotSentError, PeerRpc
from moldau.queues.ledger_host import RESPONSE_SECONDS_MAX, LedgerHost
from moldau.queues.ledger_scheduler import ReadStored, WriteRecords

log = logging.getLogger(__name__)

T = TypeVar("T")


_RETRY_SECONDS: Final = 5.0
"""Longer than an election and a load take."""
_PAUSE_SECONDS: Final = 0.05
_MARGIN_SECONDS: Final = 1.0
"""For the network: the timeout of the ledger itself is more specific."""
_NAMES_REMEMBERED_MAX: Final = 512
_OPEN_PER_PEER_MAX: Final = 32
"""Half of the requests that a peer handles at once; the rest is for other RPCs."""

_NOT_EXECUTED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""With these codes nothing was written, so any request may be retried."""
_OUTCOME_UNKNOWN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})
"""The response was lost, or the write may still be committed."""


class LedgerRefusedError(MoldauError):
    """Nothing was written: `refusal` is FENCED (a newer leader exists) or OUT_OF_STEP (the writer
    must reload the queue)."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class LedgerRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request about one queue; records only for a write."""

    group: str
    topic_id: bytes
    partition: int
    records: tuple[tuple[bytes, bytes], ...] = ()


_decode_ledger_request: Final = msgspec.msgpack.Decoder(LedgerRequest).decode
_decode_stored: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Ledgers(CoordinatorService[LedgerHost]):
    """The ledgers of this broker, and access to those of the others.

    `fresh_image` returns an image that includes everything committed before the call; it raises
    RefusedError while that is unavailable.
    """

    def __init__(
        self,
        *,
        state_partitions: int,
        fresh_image: Callable[[], Awaitable[Image]],
        caller: PeerCaller,
        **parts: Unpack[ServiceParts],
    ) -> None:
        super().__init__(topic=QUEUE_STATE_TOPIC, partitions_wanted=state_partitions, **parts)
        self._fresh_image = fresh_image
        self._caller = caller
        self._slots: dict[BrokerId, asyncio.Semaphore] = {}

    def _new_coordinator(self, index: int, hosted: HostedPartition) -> LedgerHost:
        return LedgerHost(**self._host_parts(index, hosted))

    # ---- access to all ledgers

    async def stored(self, queue: QueueId) -> list[Stored]:
        """The stored records; empty for a new queue. Raises RefusedError.

        Includes all writes that were acknowledged before, by any leader.
        """
        here = partial(self._stored_here, queue)
        return await self._call_leader(
            queue, PeerMethod.LEDGER_READ, here, _decode_stored, is_repeatable=True
        )

    async def write(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        """Returns when the records are committed, all of them.

        Raises LedgerRefusedError if they are not the next records; then nothing was written.
        Raises RefusedError if no leader is reachable, or the response is lost: then they may have
        been written.
        """
        encoded = tuple(encode(record) for record in records)
        here = partial(self._write_here, queue, encoded)
        refusal = await self._call_leader(
            queue, PeerMethod.LEDGER_WRITE, here, _decode_refusal, encoded
        )
        if refusal is not Refusal.NONE:
            raise LedgerRefusedError(refusal)

    async def forget(self, queue: QueueId) -> None:
        """Delete all records of the queue. Raises RefusedError."""
        here = partial(self._forget_here, queue)
        await self._call_leader(
            queue, PeerMethod.LEDGER_FORGET, here, lambda _: None, is_repeatable=True
        )

    async def _call_leader(
        self,
        queue: QueueId,
        method: int,
        here: Callable[[], Awaitable[T]],
        decode_response: Callable[[bytes], T],
        records: tuple[Stored, ...] = (),
        *,
        is_repeatable: bool = False,
    ) -> T:
        """Call the leader of the ledger, which may be this broker (`here`), with retries.

        A request that is not `is_repeatable` is retried only if it was certainly not executed.
        """
        name = _hashed_name(queue)
        payload: bytes | None = None
        deadline = self._loop.time() + _RETRY_SECONDS
        while True:
            try:
                broker = await self.find_coordinator(name)
                if broker == self._broker:
                    return await here()
                if payload is None:
                    payload = _encode_request(queue, records)
                response = await self._call(broker, name, method, payload)
                break
            except RefusedError as error:
                is_safe = isinstance(error, NotSentError) or error.code in _NOT_EXECUTED
                may_retry = is_safe or (is_repeatable and error.code in _OUTCOME_UNKNOWN)
                if not may_retry or self._is_stopping or self._loop.time() >= deadline:
                    raise
                log.debug("retrying a request to the ledger of %s: %s", name, error)
            await asyncio.sleep(_PAUSE_SECONDS)
        try:
            return decode_response(response)
        except (*MALFORMED, KeyError) as error:
            raise RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"invalid response of the ledger's broker: {error}",
            ) from None

    async def _call(self, broker: BrokerId, name: str, method: int, payload: bytes) -> bytes:
        """Raises RefusedError."""
        slot = self._slots.setdefault(broker, asyncio.Semaphore(_OPEN_PER_PEER_MAX))
        async with slot:
            if self._known_leader(name) != broker:
                # Requests that waited for a slot must not time out one after the other at a broker
                # that hangs, when another leader was elected long ago.
                raise RefusedError(
                    ErrorCode.NOT_COORDINATOR, f"broker {broker} no longer leads that ledger"
                )
            return await self._caller.call(
                broker, method, payload, RESPONSE_SECONDS_MAX + _MARGIN_SECONDS
            )

    # ---- ledgers of this broker

    async def _stored_here(self, queue: QueueId) -> list[Stored]:
        host = self._coordinator_of(_hashed_name(queue))
        try:
            # A leader that was suspended would return what was stored before it was replaced.
            await host.replica.confirm_leadership()
        except RefusedError as error:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, str(error)) from None
        found = await host.request(lambda request_id: ReadStored(request_id, queue))
        return [] if isinstance(found, Refusal) else list(found)

    async def _write_here(self, queue: QueueId, records: tuple[Stored, ...]) -> Refusal:
        host = self._coordinator_of(_hashed_name(queue))
        result = await host.request(lambda request_id: WriteRecords(request_id, queue, records))
        return result if isinstance(result, Refusal) else Refusal.NONE

    async def _forget_here(self, queue: QueueId) -> None:
        await self._coordinator_of(_hashed_name(queue)).forget(queue)

    # ---- RPCs of peers; the handlers raise RefusedError

    def serve(self, rpc: PeerRpc) -> None:
        rpc.serve(PeerMethod.LEDGER_READ, self.handle_stored)
        rpc.serve(PeerMethod.LEDGER_WRITE, self.handle_write)
        rpc.serve(PeerMethod.LEDGER_FORGET, self.handle_forget)

    async def handle_stored(self, sender: BrokerId, payload: bytes) -> bytes:
        queue, _ = _decode_request(payload)
        return msgspec.msgpack.encode(await self._stored_here(queue))

    async def handle_write(self, sender: BrokerId, payload: bytes) -> bytes:
        queue, records = _decode_request(payload)
        refusal = await self._write_here(queue, records)
        return msgspec.msgpack.encode(refusal.name)

    async def handle_forget(self, sender: BrokerId, payload: bytes) -> bytes:
        queue, _ = _decode_request(payload)
        await self._forget_here(queue)
        return b""

    # ---- deleted topics

    async def _loaded(self, coordinator: LedgerHost) -> None:
        while True:
            coordinator.topics_deleted.clear()
            await self._drop_deleted_topics(coordinator)
            await coordinator.topics_deleted.wait()

    def topics_deleted(self) -> None:
        """The image lost topics."""
        for host in self._coordinators.values():
            host.topics_deleted.set()

    async def _drop_deleted_topics(self, host: LedgerHost) -> None:
        """Delete the queues of deleted topics; no other broker does.

        Only a fresh image proves that a topic was deleted: a stale one also lacks new topics. Topic
        ids are never reused. The queues are listed before the image is fetched: a topic that is
        created meanwhile may not be in it.
        """
        queues = list(host.state.ledger.queues())
        if not queues:
            return
        image = await wait_for_image(self._fresh_image)
        for queue in queues:
            if queue.topic_id in image.topics_by_id:
                continue
            try:
                await host.forget(queue)
            except RefusedError as error:
                # It takes some space until the next load.
                log.warning(
                    "cannot delete the state of group %s on partition %d of a deleted topic, "
                    "will retry at the next load: %s",
                    *(queue.group, queue.partition, error),
                    extra=events.QUEUE_STATE_NOT_DELETED(group=queue.group),
                )


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def _hashed_name(queue: QueueId) -> str:
    """The name that is hashed to a partition. Part of the stored format: it must never change.

    Raises RefusedError for an invalid group name.
    """
    queue_key(queue)
    return f"{queue.group}/{queue.topic_id.hex()}/{queue.partition}"


def _encode_request(queue: QueueId, records: tuple[Stored, ...] = ()) -> bytes:
    return msgspec.msgpack.encode(
        LedgerRequest(queue.group, queue.topic_id, queue.partition, records)
    )


def _decode_request(payload: bytes) -> tuple[QueueId, tuple[Stored, ...]]:
    """Raises RefusedError: invalid records must not be appended."""
    try:
        request = _decode_ledger_request(payload)
        heads = [decode_head(*record) for record in request.records]
    except (*MALFORMED, CorruptionError) as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"cannot decode a ledger request: {error}"
        ) from None
    queue = QueueId(request.group, TopicId(request.topic_id), PartitionIndex(request.partition))
    if not all(isinstance(head, RecordHead) and head.queue == queue for head in heads):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "a ledger request has records of another queue"
        )
    return queue, request.records


def _decode_refusal(response: bytes) -> Refusal:
    return Refusal[msgspec.msgpack.decode(response, type=str)]
