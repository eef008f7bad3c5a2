"""Handlers of Send and SendBatch: messages become batches for the partition leaders."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from moldau import tracing
from moldau.api.queues import ErrorReason, QueueRefusedError, invalid
from moldau.api.quotas import charged
from moldau.api.record_producer import offsets_of
from moldau.api.session import Session
from moldau.api.types import ACKS_ALL, ACKS_LEADER, ACKS_NONE, AppendResult
from moldau.edge.grpc.calls import Call, Calls, RefusedCallError, current_task
from moldau.edge.grpc.checks import number, topic_name
from moldau.edge.grpc.errors import ErrorStatus, reason_of, short, status_of
from moldau.edge.grpc.messages import read_message
from moldau.model.errors import ErrorCode, MoldauError, RefusedError
from moldau.model.ids import TimestampMs
from moldau.model.queue_limits import SEND_MESSAGES_MAX
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import (
    OutgoingMessage,
    SendBatchRequest,
    SendBatchResponse,
    SendFailure,
    SendRequest,
    SendResponse,
)
from moldau.records.record import Record
from moldau.security.sasl import AuthenticationError

AHEAD_MAX: Final = 8
"""Concurrent requests of one stream; flow control holds back further ones."""
BYTES_MAX: Final = 128 * 1024 * 1024
"""Of all requests that are being stored; above it, clients get BUSY and retry."""
TIMEOUT_MS: Final = 30_000
TIMEOUT_MS_MAX: Final = 300_000

_ACKS: Final = {
    queue_pb2.ACKS_ALL: ACKS_ALL,
    queue_pb2.ACKS_LEADER: ACKS_LEADER,
    queue_pb2.ACKS_NONE: ACKS_NONE,
}


class SendHandlers:
    """Accepts messages for any partition, on any broker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._bytes = 0

    async def send(self, request: SendRequest, session: Session) -> SendResponse:
        if not request.HasField("message"):
            raise invalid("the request has no message")
        message = request.message
        acks, seconds = _acks(request), _seconds(request)
        record = read_message(message, session.clock.wall_ms())
        if tracing.active is not None:
            (record,) = tracing.active.stamped([record])
        topic = session.topics.get(topic_name("topic", request.topic))
        (partition,) = partitions = session.appends.partitions_for(
            topic, [(_partition(message), record.key)]
        )
        with self._reserve(request):
            results = await session.appends.store(
                topic, [record], partitions, acks=acks, timeout_seconds=seconds
            )
        result = results[partition]
        if result.error is not ErrorCode.NONE:
            raise RefusedCallError(
                ErrorStatus(
                    reason_of(result.error), result.message, is_uncertain=result.is_uncertain
                )
            )
        has_offset = request.acks != queue_pb2.ACKS_NONE
        return SendResponse(partition=partition, offset=result.base_offset if has_offset else -1)

    async def send_batch(self, call: Call[SendBatchRequest, SendBatchResponse]) -> None:
        """Handles several requests concurrently, and responds in their order."""
        pending: deque[asyncio.Task[None]] = deque()
        handling, is_reading = current_task(), True
        failed = False

        def ended(task: asyncio.Task[None]) -> None:
            nonlocal failed
            if not task.cancelled() and task.exception() is not None:
                failed = True
                if is_reading:
                    # It waits for a request that may never come.
                    handling.cancel()

        try:
            with self._calls.waiting():
                while (request := await call.read()) is not None:
                    while pending and pending[0].done():
                        pending.popleft().result()
                    if len(pending) == AHEAD_MAX:
                        await asyncio.wait((pending[0],))
                    # Started, and so appended, in the order of the stream.
                    answer = self._answer(request, call, pending[-1] if pending else None)
                    task = asyncio.create_task(charged(answer))
                    task.add_done_callback(ended)
                    pending.append(task)
            is_reading = False
            await _all(pending)
        except asyncio.CancelledError:
            is_reading = False
            if failed or self._calls.stopping.done():
                # Requests in progress still get a response, up to the one that failed.
                await _all(pending)
            raise
        except (MoldauError, AuthenticationError):
            # So do those before one that is refused: gRPC cannot send an error during a write.
            is_reading = False
            await _all(pending)
            raise
        finally:
            for task in pending:
                task.cancel()

    async def _answer(
        self,
        request: SendBatchRequest,
        call: Call[SendBatchRequest, SendBatchResponse],
        before: "asyncio.Task[None] | None",
    ) -> None:
        response = await self._store(request, call.session)
        if before is not None:
            await before
        await call.confirm(response)

    async def _store(self, request: SendBatchRequest, session: Session) -> SendBatchResponse:
        """Returns errors of the request in the response: the stream continues."""
        count = len(request.messages)
        try:
            if not count:
                raise invalid("the request has no messages")
            if count > SEND_MESSAGES_MAX:
                raise invalid(f"{count} messages; the limit is {SEND_MESSAGES_MAX} per request")
            topic = session.topics.get(topic_name("topic", request.topic))
            acks, seconds = _acks(request), _seconds(request)
            records, placements = _records(request, session.clock.wall_ms())
            partitions = session.appends.partitions_for(topic, placements)
            with self._reserve(request):
                results = await session.appends.store(
                    topic, records, partitions, acks=acks, timeout_seconds=seconds
                )
        except (QueueRefusedError, RefusedError) as error:
            status = status_of(error)
            failure = SendFailure(
                indexes=range(count), reason=status.reason, message=short(status.text)
            )
            nothing = [-1] * count
            return SendBatchResponse(partitions=nothing, offsets=nothing, failures=[failure])
        offsets = offsets_of(partitions, results)
        if all(result.error is ErrorCode.NONE for result in results.values()):
            if request.acks == queue_pb2.ACKS_NONE:
                offsets = [-1] * count
            return SendBatchResponse(partitions=partitions, offsets=offsets)
        return _with_failures(partitions, offsets, results)

    @contextmanager
    def _reserve(self, request: SendRequest | SendBatchRequest) -> Iterator[None]:
        """Raises QueueRefusedError."""
        size = request.ByteSize()
        if self._bytes + size > BYTES_MAX:
            raise QueueRefusedError(
                ErrorReason.BUSY,
                f"too many bytes are being stored (limit {BYTES_MAX:,}): retry later",
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size


async def _all(tasks: "Iterable[asyncio.Task[None]]") -> None:
    """In order, up to the first that fails."""
    for task in tasks:
        await task


def _records(
    request: SendBatchRequest, now: TimestampMs
) -> tuple[list[Record], list[tuple[int | None, bytes | None]]]:
    records: list[Record] = []
    placements: list[tuple[int | None, bytes | None]] = []
    try:
        for message in request.messages:
            record = read_message(message, now)
            records.append(record)
            placements.append((_partition(message), record[2]))
    except QueueRefusedError as error:
        raise invalid(f"message {len(records)}: {error}") from None
    return records, placements


def _partition(message: OutgoingMessage) -> int | None:
    return message.partition if message.HasField("partition") else None


def _with_failures(
    partitions: list[int], offsets: list[int], results: dict[int, AppendResult]
) -> SendBatchResponse:
    response = SendBatchResponse()
    failed: dict[int, list[int]] = {}
    for index, (partition, offset) in enumerate(zip(partitions, offsets, strict=True)):
        is_stored = results[partition].error is ErrorCode.NONE
        response.partitions.append(partition if is_stored else -1)
        response.offsets.append(offset)
        if not is_stored:
            failed.setdefault(partition, []).append(index)
    for partition, indexes in failed.items():
        result = results[partition]
        response.failures.add(
            indexes=indexes,
            reason=reason_of(result.error),
            message=short(result.message),
            is_uncertain=result.is_uncertain,
        )
    return response


def _acks(request: SendRequest | SendBatchRequest) -> int:
    if request.acks not in _ACKS:
        raise invalid(f"acks is {request.acks}, but must be 0 (all), 1 (leader) or 2 (none)")
    return _ACKS[request.acks]


def _seconds(request: SendRequest | SendBatchRequest) -> float:
    return (number("timeout_ms", request.timeout_ms, most=TIMEOUT_MS_MAX) or TIMEOUT_MS) / 1000
