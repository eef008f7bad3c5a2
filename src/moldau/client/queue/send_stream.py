"""Owns one SendBatch stream to one broker: some requests ahead of its answers, and no more.

The answers come in the order of the requests. A stream that breaks leaves the requests without an
answer uncertain, unless the broker was never reached.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

import grpc
from grpc import aio

from moldau.client.errors import ClientError, SendFailedError
from moldau.client.queue.channels import SEND_BATCH, Channels
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    error_for,
    error_of,
    failure_of,
    retries_exhausted_error,
)
from moldau.proto.v1 import queue_pb2 as pb

_ANSWER_SECONDS: Final = 5.0
"""On top of the broker's own time."""
_AGAIN: Final = frozenset({pb.NOT_LEADER, pb.UNAVAILABLE, pb.BUSY})
_NAMES: Final[dict[int, str]] = {number: name for name, number in pb.Reason.items()}
UNCERTAIN_HINT: Final = (
    "some may be there all the same: send those again only if doubles do no harm"
)


class Unsent(NamedTuple):
    """A message that was surely not written, and may be tried again."""

    message: pb.OutgoingMessage
    failure: RpcFailure

    def error(self, topic: str, seconds: float) -> ClientError:
        return retries_exhausted_error(
            {self.failure.address: self.failure}, f"send to {topic}", seconds
        )


class SendOutcome:
    """What became of the messages of one call, by their place in it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[int, Sent] = {}
        self.errors: dict[int, ClientError] = {}
        self.again: dict[int, Unsent] = {}
        self.is_uncertain = False

    def result(self) -> list[Sent]:
        """Where all went. Raises SendFailedError if some went nowhere."""
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
    """About what it takes of a request; headers are few."""
    return len(message.value) + len(message.key) + 64


class SendChunk:
    """Messages of one request."""

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
    """One stream."""

    def __init__(
        self,
        channels: Channels,
        address: str,
        outcome: SendOutcome,
        *,
        acks: "pb.Acks.ValueType",
        seconds_max: float,
        in_flight_max: int,
    ) -> None:
        self._address = address
        self._outcome = outcome
        self._acks = acks
        self._seconds_max = seconds_max
        self._room = asyncio.Semaphore(in_flight_max)
        self._in_flight: deque[SendChunk] = deque()
        self._call = channels.stream(address, SEND_BATCH)
        self._failure: RpcFailure | None = None
        self._is_done = False
        self._arrived = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="queue-send")

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    async def put(self, chunk: SendChunk) -> None:
        """Send a chunk when there is room. Its outcome is told, also if the stream is broken."""
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
        # Of a broken stream the reader finds out why, and tells of this chunk with the others.
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def finish(self) -> None:
        """Wait for all answers."""
        self._is_done = True
        self._arrived.set()
        if self._failure is None:
            # As above.
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.done_writing()
        await self._reading

    def cancel(self) -> None:
        """End what is under way."""
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
                async with asyncio.timeout(self._seconds_max + _ANSWER_SECONDS):
                    answer = await self._call.read()
            except aio.AioRpcError as error:
                self._break(failure_of(error, self._address))
                return
            except TimeoutError:
                late = grpc.StatusCode.DEADLINE_EXCEEDED
                self._break(RpcFailure(self._address, late, "", "no answer in time", "", True))
                return
            if not isinstance(answer, pb.SendBatchResponse):
                self._break(await self._ended())
                return
            self._answered(self._in_flight.popleft(), answer)
            self._room.release()

    async def _ended(self) -> RpcFailure:
        """The broker ended the stream before it had answered all."""
        status = await self._call.code()
        text = await self._call.details() or "the stream ended early"
        trailers = await self._call.trailing_metadata()
        if status is grpc.StatusCode.OK:
            status = grpc.StatusCode.UNAVAILABLE
        error = aio.AioRpcError(status, aio.Metadata(), trailers or aio.Metadata(), details=text)
        return failure_of(error, self._address)

    def _break(self, failure: RpcFailure) -> None:
        self._failure = failure
        while self._in_flight:
            self._fail(self._in_flight.popleft(), failure, was_sent=True)
            self._room.release()
        # Whoever waits for room finds the stream broken.
        self._room.release()

    def _fail(self, chunk: SendChunk, failure: RpcFailure, *, was_sent: bool) -> None:
        uncertain = was_sent and failure.is_uncertain
        for index, message in zip(chunk.indexes, chunk.messages, strict=True):
            if failure.may_repeat and not uncertain:
                self._outcome.again[index] = Unsent(message, failure)
            else:
                self._outcome.errors[index] = error_of(failure, f"send to {self._outcome.topic}")
                self._outcome.is_uncertain |= uncertain
        if not was_sent:
            self._room.release()

    def _answered(self, chunk: SendChunk, answer: pb.SendBatchResponse) -> None:
        failed = {place: each for each in answer.failures for place in each.indexes}
        outcome = self._outcome
        places = zip(chunk.indexes, answer.partitions, answer.offsets, strict=False)
        for place, (index, partition, offset) in enumerate(places):
            why = failed.get(place)
            if why is None:
                outcome.sent[index] = Sent(outcome.topic, partition, offset)
            elif why.reason in _AGAIN and not why.is_uncertain:
                reason = _NAMES[why.reason]
                status = grpc.StatusCode.UNAVAILABLE
                failure = RpcFailure(self._address, status, reason, why.message, "", False)
                outcome.again[index] = Unsent(chunk.messages[place], failure)
            else:
                name = _NAMES.get(why.reason, "INTERNAL")
                outcome.errors[index] = error_for(
                    name, f"cannot send to {outcome.topic}: {why.message}"
                )
                outcome.is_uncertain |= why.is_uncertain
