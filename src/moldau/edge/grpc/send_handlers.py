"""Owns Send and SendBatch: messages become batches for the leaders of their partitions."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from moldau.api.broker import Broker
from moldau.api.lookup import find_topic
from moldau.api.record_producer import RecordProducer, offsets_of
from moldau.data.append_forwarding import AppendResult
from moldau.data.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from moldau.edge.grpc.calls import Call, Calls, RefusedCallError
from moldau.edge.grpc.checks import number, topic_name
from moldau.edge.grpc.errors import STOPPING, ErrorStatus, invalid, reason_of, short, status_of
from moldau.edge.grpc.messages import read_message
from moldau.model.errors import ErrorCode, RefusedError
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import (
    OutgoingMessage,
    SendBatchRequest,
    SendBatchResponse,
    SendFailure,
    SendRequest,
    SendResponse,
)
from moldau.queues.types import ErrorReason, QueueRefusedError
from moldau.records.record import Record

AHEAD_MAX: Final = 8
"""Requests of one stream that are worked on at once; the next one stays in the connection."""
MESSAGES_MAX: Final = 5_000
"""Of a request: some ten milliseconds in which nothing else runs."""
BYTES_MAX: Final = 128 * 1024 * 1024
"""Of requests that are being stored, of all clients; who finds no room comes again."""
TIMEOUT_MS: Final = 30_000
TIMEOUT_MS_MAX: Final = 300_000

_ACKS: Final = {
    queue_pb2.ACKS_ALL: ACKS_ALL,
    queue_pb2.ACKS_LEADER: ACKS_LEADER,
    queue_pb2.ACKS_NONE: ACKS_NONE,
}


class SendHandlers:
    """Takes messages for any partition, whoever leads it."""

    def __init__(self, broker: Broker, calls: Calls) -> None:
        self._broker = broker
        self._calls = calls
        self._sender = RecordProducer(broker)
        self._bytes = 0

    async def send(
        self, request: SendRequest, call: Call[SendRequest, SendResponse]
    ) -> SendResponse:
        if not request.HasField("message"):
            raise invalid("there is no message")
        message = request.message
        acks, seconds = _acks(request), _seconds(request)
        record = read_message(message, self._broker.clock.wall_ms())
        topic = find_topic(self._broker, topic_name("topic", request.topic))
        (partition,) = places = self._sender.places(topic, [(_partition(message), record.key)])
        with self._room_for(request):
            answers = await self._sender.store(
                topic, [record], places, acks=acks, timeout_seconds=seconds
            )
        found = answers[partition]
        if found.error is not ErrorCode.NONE:
            raise RefusedCallError(
                ErrorStatus(reason_of(found.error), found.message, is_uncertain=found.is_uncertain)
            )
        is_told = request.acks != queue_pb2.ACKS_NONE
        return SendResponse(partition=partition, offset=found.base_offset if is_told else -1)

    async def send_batch(self, call: Call[SendBatchRequest, SendBatchResponse]) -> None:
        """Works on several requests at once, and answers them in their order."""
        pending: deque[asyncio.Task[SendBatchResponse]] = deque()
        reading: asyncio.Task[SendBatchRequest | None] | None = asyncio.create_task(call.read())
        stopping = self._calls.stopping
        try:
            while reading is not None or pending:
                awaited: set[asyncio.Future[Any]] = set()
                if reading is not None and len(pending) < AHEAD_MAX:
                    awaited |= {reading, stopping}
                if pending:
                    awaited.add(pending[0])
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                while pending and pending[0].done():
                    await call.write(pending.popleft().result())
                if reading is not None and reading.done() and len(pending) < AHEAD_MAX:
                    request = reading.result()
                    reading = None
                    if request is not None:
                        # Begun in the order of the stream, and so appended.
                        pending.append(asyncio.create_task(self._store(request)))
                        reading = asyncio.create_task(call.read())
                elif reading is not None and stopping.done():
                    # What is under way is still answered.
                    reading.cancel()
                    reading = None
            if stopping.done():
                raise RefusedCallError(STOPPING)
        finally:
            for task in (*pending, *((reading,) if reading is not None else ())):
                task.cancel()

    async def _store(self, request: SendBatchRequest) -> SendBatchResponse:
        """Never raises what is the request's fault: the stream goes on."""
        count = len(request.messages)
        try:
            if not count:
                raise invalid("there are no messages")
            if count > MESSAGES_MAX:
                raise invalid(f"{count} messages; a request may have {MESSAGES_MAX}")
            topic = find_topic(self._broker, topic_name("topic", request.topic))
            acks, seconds = _acks(request), _seconds(request)
            records, asked = self._read(request)
            places = self._sender.places(topic, asked)
            with self._room_for(request):
                answers = await self._sender.store(
                    topic, records, places, acks=acks, timeout_seconds=seconds
                )
        except (QueueRefusedError, RefusedError) as error:
            refusal = status_of(error)
            failure = SendFailure(
                indexes=range(count), reason=refusal.reason, message=short(refusal.text)
            )
            nothing = [-1] * count
            return SendBatchResponse(partitions=nothing, offsets=nothing, failures=[failure])
        offsets = offsets_of(places, answers)
        if all(found.error is ErrorCode.NONE for found in answers.values()):
            if request.acks == queue_pb2.ACKS_NONE:
                offsets = [-1] * count
            return SendBatchResponse(partitions=places, offsets=offsets)
        return _with_failures(places, offsets, answers)

    @contextmanager
    def _room_for(self, request: SendRequest | SendBatchRequest) -> Iterator[None]:
        """Raises QueueRefusedError."""
        size = request.ByteSize()
        if self._bytes + size > BYTES_MAX:
            raise QueueRefusedError(
                ErrorReason.BUSY,
                f"{self._bytes:,} bytes are being stored; more than {BYTES_MAX:,} are not",
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    def _read(
        self, request: SendBatchRequest
    ) -> tuple[list[Record], list[tuple[int | None, bytes | None]]]:
        now = self._broker.clock.wall_ms()
        records: list[Record] = []
        try:
            for message in request.messages:
                records.append(read_message(message, now))
        except QueueRefusedError as error:
            raise invalid(f"message {len(records)}: {error}") from None
        asked = [
            (_partition(message), record.key)
            for message, record in zip(request.messages, records, strict=True)
        ]
        return records, asked


def _partition(message: OutgoingMessage) -> int | None:
    return message.partition if message.HasField("partition") else None


def _with_failures(
    places: list[int], offsets: list[int], answers: dict[int, AppendResult]
) -> SendBatchResponse:
    response = SendBatchResponse()
    lost: dict[int, list[int]] = {}
    for index, (partition, offset) in enumerate(zip(places, offsets, strict=True)):
        is_safe = answers[partition].error is ErrorCode.NONE
        response.partitions.append(partition if is_safe else -1)
        response.offsets.append(offset)
        if not is_safe:
            lost.setdefault(partition, []).append(index)
    for partition, indexes in lost.items():
        found = answers[partition]
        response.failures.add(
            indexes=indexes,
            reason=reason_of(found.error),
            message=short(found.message),
            is_uncertain=found.is_uncertain,
        )
    return response


def _acks(request: SendRequest | SendBatchRequest) -> int:
    if request.acks not in _ACKS:
        raise invalid(f"acks is {request.acks}; it must be 0 (all), 1 (leader) or 2 (none)")
    return _ACKS[request.acks]


def _seconds(request: SendRequest | SendBatchRequest) -> float:
    return (number("timeout_ms", request.timeout_ms, most=TIMEOUT_MS_MAX) or TIMEOUT_MS) / 1000
