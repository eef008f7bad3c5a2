"""One SendBatch stream to one broker, with a bounded number of requests in flight.

Responses arrive in the order of the requests. If a stream breaks, the requests without a response
are uncertain, unless the broker was never reached. A stream serves one `send_many` after the other
(`send_streams.py`): to open one costs more than to send a hundred messages.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple, Self

import grpc
from grpc import aio

from moldau.client.errors import ClientError, SendFailedError
from moldau.client.queue.channels import SEND_BATCH, Channels
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.rpc_failures import (
    REASON_NAMES,
    RETRIABLE_REASONS,
    RpcFailure,
    error_for,
    error_of,
    failure_of,
    retries_exhausted_error,
    stream_failure,
    timed_out_failure,
)
from moldau.proto.v1 import queue_pb2 as pb

_RESPONSE_SECONDS: Final = 5.0
"""Added to the timeout of the broker."""
UNCERTAIN_HINT: Final = "it may have been written: send it again only if duplicates do no harm"


class Unsent(NamedTuple):
    """A message that was certainly not written, and may be retried."""

    message: pb.OutgoingMessage
    failure: RpcFailure

    def error(self, topic: str, seconds: float) -> ClientError:
        return retries_exhausted_error(
            {self.failure.address: self.failure}, f"send to {topic}", seconds
        )


class SendOutcome:
    """The results of the messages of one call, by index."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[int, Sent] = {}
        self.errors: dict[int, ClientError] = {}
        self.unsent: dict[int, Unsent] = {}
        self.is_uncertain = False

    def result(self) -> list[Sent]:
        """Where all were written. Raises SendFailedError if some were not."""
        if not self.errors:
            return [sent for _, sent in sorted(self.sent.items())]
        count = len(self.errors) + len(self.sent)
        first = self.errors[min(self.errors)]
        raise SendFailedError(
            f"{len(self.errors)} of {count} messages failed: {first}",
            self.errors,
            [self.sent.get(index) for index in range(count)],
            is_uncertain=self.is_uncertain,
            hint=UNCERTAIN_HINT if self.is_uncertain else first.hint,
        ) from first


def size_of(message: pb.OutgoingMessage) -> int:
    """Approximate bytes in a request; headers are small."""
    return len(message.value) + len(message.key) + 64


class SendChunk:
    """The messages of one request."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.messages: list[pb.OutgoingMessage] = []
        self.chosen: list[int | None] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.indexes)

    def add(self, index: int, message: pb.OutgoingMessage, partition: int | None) -> None:
        self.indexes.append(index)
        self.messages.append(message)
        self.chosen.append(partition)
        self.size += size_of(message)


class SendStream:
    """A SendBatch stream. Not for more than one task at a time: `begin`, put, `finish`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self.opened_at = self.used_at = time.monotonic()
        self._call = channels.stream(address, SEND_BATCH)
        self._has_response = False
        self._failure: RpcFailure | None = None
        self._in_flight: deque[SendChunk] = deque()
        self._arrived = asyncio.Event()

    def begin(
        self,
        outcome: SendOutcome,
        *,
        acks: "pb.Acks.ValueType",
        seconds_max: float,
        in_flight_max: int,
    ) -> Self:
        """What is put from now on is of this outcome."""
        self._outcome = outcome
        self._acks = acks
        self._seconds_max = seconds_max
        # One until the first response: a broker may refuse the stream, and gRPC hides why from a
        # client that still writes.
        self._room = asyncio.Semaphore(in_flight_max if self._has_response else 1)
        self._room_later = 0 if self._has_response else in_flight_max - 1
        self._is_done = False
        self._reading = asyncio.create_task(self._read(), name="queue-send")
        return self

    @property
    def is_idle(self) -> bool:
        """Whether another `begin` may follow."""
        is_over = self._reading.done() and not self._in_flight
        return is_over and self._failure is None and not self._call.done()

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    @property
    def has_to_wait(self) -> bool:
        """Whether the client is over its quota: another stream would be refused, too."""
        return self._failure is not None and self._failure.retry_seconds > 0

    async def put(self, chunk: SendChunk) -> None:
        """Send a chunk when there is room. Records its outcome, also if the stream is broken."""
        await self._room.acquire()
        if self._failure is not None:
            self._fail(chunk, self._failure, was_sent=False)
            return
        request = pb.SendBatchRequest(
            topic=self._outcome.topic, acks=self._acks, timeout_ms=int(self._seconds_max * 1000)
        )
        for message, chosen in zip(chunk.messages, chunk.chosen, strict=True):
            added = request.messages.add()
            added.CopyFrom(message)
            if chosen is not None:
                added.partition = chosen
        self._in_flight.append(chunk)
        self._arrived.set()
        # If the stream is broken, the reader records the failure of this chunk with the others.
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def finish(self) -> None:
        """Wait for all responses."""
        self._is_done = True
        self._arrived.set()
        await self._reading
        self.used_at = time.monotonic()

    def cancel(self) -> None:
        """Cancel the stream."""
        if not self._reading.done():
            self._reading.cancel()
        self._call.cancel()

    async def _read(self) -> None:
        while True:
            while not self._in_flight:
                if self._is_done:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            try:
                async with asyncio.timeout(self._seconds_max + _RESPONSE_SECONDS):
                    response = await self._call.read()
            except aio.AioRpcError as error:
                self._break(failure_of(error, self.address))
                return
            except TimeoutError:
                self._break(timed_out_failure(self.address))
                return
            if not isinstance(response, pb.SendBatchResponse):
                self._break(await stream_failure(self._call, self.address))
                return
            self._has_response = True
            self._handle(self._in_flight.popleft(), response)
            for _ in range(1 + self._room_later):
                self._room.release()
            self._room_later = 0

    def _break(self, failure: RpcFailure) -> None:
        self._failure = failure
        while self._in_flight:
            self._fail(self._in_flight.popleft(), failure, was_sent=True)
            self._room.release()
        # A waiting `put` finds the stream broken.
        self._room.release()

    def _fail(self, chunk: SendChunk, failure: RpcFailure, *, was_sent: bool) -> None:
        uncertain = was_sent and failure.is_uncertain
        for index, message in zip(chunk.indexes, chunk.messages, strict=True):
            if failure.is_retriable and not uncertain:
                self._outcome.unsent[index] = Unsent(message, failure)
            else:
                self._outcome.errors[index] = error_of(failure, f"send to {self._outcome.topic}")
                self._outcome.is_uncertain |= uncertain
        if not was_sent:
            self._room.release()

    def _handle(self, chunk: SendChunk, response: pb.SendBatchResponse) -> None:
        failed = {place: each for each in response.failures for place in each.indexes}
        outcome = self._outcome
        places = zip(chunk.indexes, response.partitions, response.offsets, strict=False)
        for place, (index, partition, offset) in enumerate(places):
            why = failed.get(place)
            if why is None:
                outcome.sent[index] = Sent(outcome.topic, partition, offset)
            elif why.reason in RETRIABLE_REASONS and not why.is_uncertain:
                reason = REASON_NAMES[why.reason]
                status = grpc.StatusCode.UNAVAILABLE
                failure = RpcFailure(self.address, status, reason, why.message, "", False)
                outcome.unsent[index] = Unsent(chunk.messages[place], failure)
            else:
                name = REASON_NAMES.get(why.reason, "INTERNAL")
                outcome.errors[index] = error_for(
                    name, f"cannot send to {outcome.topic}: {why.message}"
                )
                outcome.is_uncertain |= why.is_uncertain
