"""Sends messages to the leaders of their partitions, and reports the result of each.

A message with a key goes to the partition that Kafka's clients choose; messages without one go to
one partition per request, in turn. A message is sent again only if it is certain that it was not
written; otherwise its result is uncertain.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from moldau.client.errors import ClientError, SendFailedError
from moldau.client.queue.channels import SEND
from moldau.client.queue.cluster_view import ClusterView
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import error_for
from moldau.client.queue.send_stream import (
    UNCERTAIN_HINT,
    SendChunk,
    SendOutcome,
    SendStream,
    size_of,
)
from moldau.client.queue.send_streams import SendStreams
from moldau.proto.v1 import queue_pb2 as pb
from moldau.records.murmur2 import partition_of

CHUNK_MESSAGES_MAX: Final = 200
CHUNK_BYTES_MAX: Final = 512 * 1024
REQUEST_BYTES_MAX: Final = 6 * 1024 * 1024 - 4096
"""The limit of brokers, less the overhead of a request."""
IN_FLIGHT_MAX: Final = 8
"""Requests in flight of one stream."""


class QueueSender:
    """Sends messages of one client."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc
        self._turn = 0
        self.streams = SendStreams(rpc.channels)

    def close(self) -> None:
        self.streams.close()

    async def send(
        self, topic: str, message: pb.OutgoingMessage, acks: "pb.Acks.ValueType", seconds_max: float
    ) -> Sent:
        """Send one message. Raises ClientError; SendFailedError if it may have been written."""
        chosen: int | None = None

        def route(view: ClusterView) -> list[str]:
            nonlocal chosen
            chosen = self._partition(view, topic, message)
            address = None if chosen is None else view.leader_address(topic, chosen)
            return [] if address is None else [address]

        async def attempt(address: str, seconds: float) -> pb.SendResponse:
            request = pb.SendRequest(
                topic=topic, message=message, acks=acks, timeout_ms=max(1, int(seconds * 1000))
            )
            if chosen is not None:
                request.message.partition = chosen
            # The broker gets all of the time; its response a little more.
            return await self._rpc.channels.call(
                address, SEND, request, seconds_max=seconds + _RESPONSE_SECONDS
            )

        try:
            response = await self._rpc.retry(
                attempt, route=route, seconds_max=seconds_max, idempotent=False
            )
        except CallFailed as failed:
            error = failed.error(f"send to {topic}")
            if not failed.failure.is_uncertain:
                raise error from failed.__cause__
            raise SendFailedError(
                str(error), {0: error}, [None], is_uncertain=True, hint=UNCERTAIN_HINT
            ) from failed.__cause__
        return Sent(topic, response.partition, response.offset)

    async def send_many(
        self,
        topic: str,
        messages: Iterable[pb.OutgoingMessage],
        acks: "pb.Acks.ValueType",
        seconds_max: float,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> list[Sent]:
        """Send all; where each was written. Raises SendFailedError with what failed."""
        outcome = SendOutcome(topic)

        def open_stream(address: str) -> SendStream:
            return self.streams.take(address).begin(
                outcome, acks=acks, seconds_max=seconds_max, in_flight_max=in_flight_max
            )

        run = _Run(self, outcome, open_stream)
        await run.once(enumerate(messages))
        backoff = self._rpc.backoff(seconds_max)
        while outcome.unsent and not backoff.is_over:
            await self._rpc.resolver.refresh()
            waits = (failed.failure.retry_seconds for failed in outcome.unsent.values())
            await backoff.sleep_async(min(waits))
            unsent, outcome.unsent = outcome.unsent, {}
            await run.once((index, failed.message) for index, failed in sorted(unsent.items()))
        for index, failed in outcome.unsent.items():
            outcome.errors[index] = failed.error(topic, seconds_max)
        return outcome.result()

    def route(
        self, topic: str, message: pb.OutgoingMessage, sticky: int | None
    ) -> tuple[int | None, str]:
        """The partition of a message, if it is known, and the address to send it to."""
        view = self._rpc.view
        chosen = self._partition(view, topic, message, sticky)
        address = None if chosen is None else view.leader_address(topic, chosen)
        if address is None:
            candidates = self._rpc.resolver.candidates
            return None, candidates[0] if candidates else ""
        return chosen, address

    def next_partition(self, topic: str) -> int | None:
        """For messages without a key: the partitions that have a leader, in turn."""
        view = self._rpc.view
        led = [n for n in view.topics.get(topic, ()) if view.leader_address(topic, n)]
        self._turn += 1
        return sorted(led)[self._turn % len(led)] if led else None

    def _partition(
        self,
        view: ClusterView,
        topic: str,
        message: pb.OutgoingMessage,
        sticky: int | None = None,
    ) -> int | None:
        if message.HasField("partition"):
            return message.partition
        leaders = view.topics.get(topic)
        if not leaders:
            return None
        if message.HasField("key"):
            return partition_of(message.key, len(leaders))
        return self.next_partition(topic) if sticky is None else sticky


class _Run:
    """One call of send_many: a stream per broker, each with a chunk that is being filled."""

    def __init__(
        self, sender: QueueSender, outcome: SendOutcome, open_stream: Callable[[str], SendStream]
    ) -> None:
        self._sender = sender
        self._outcome = outcome
        self._open_stream = open_stream

    async def once(self, messages: Iterable[tuple[int, pb.OutgoingMessage]]) -> None:
        topic = self._outcome.topic
        streams: dict[str, SendStream] = {}
        filling: dict[str, SendChunk] = {}
        sticky, sticky_left = None, 0
        try:
            for index, message in messages:
                if sticky_left == 0:
                    sticky, sticky_left = self._sender.next_partition(topic), CHUNK_MESSAGES_MAX
                if not message.HasField("key") and not message.HasField("partition"):
                    sticky_left -= 1
                size = size_of(message)
                if size > REQUEST_BYTES_MAX:
                    self._outcome.errors[index] = _too_large(topic, size)
                    continue
                chosen, address = self._sender.route(topic, message, sticky)
                chunk = filling.get(address)
                if chunk is not None and chunk.size + size > CHUNK_BYTES_MAX:
                    # A large message is sent alone, so that it cannot fail others.
                    await self._put(streams, address, filling.pop(address))
                    chunk = None
                if chunk is None:
                    chunk = filling[address] = SendChunk()
                chunk.add(index, message, chosen)
                if len(chunk) >= CHUNK_MESSAGES_MAX or chunk.size >= CHUNK_BYTES_MAX:
                    await self._put(streams, address, filling.pop(address))
            for address, chunk in filling.items():
                await self._put(streams, address, chunk)
            await asyncio.gather(*(stream.finish() for stream in streams.values()))
        finally:
            for stream in streams.values():
                self._sender.streams.give_back(stream)

    async def _put(self, streams: dict[str, SendStream], address: str, chunk: SendChunk) -> None:
        stream = streams.get(address)
        if stream is None or (stream.is_broken and not stream.has_to_wait):
            if stream is not None:
                stream.cancel()
            stream = streams[address] = self._open_stream(address)
        await stream.put(chunk)


def _too_large(topic: str, size: int) -> ClientError:
    return error_for(
        "TOO_LARGE",
        f"cannot send to {topic}: the message has {size:,} bytes; the limit over gRPC is "
        f"{REQUEST_BYTES_MAX:,}",
        hint="send smaller messages, or use the Kafka protocol",
    )


_RESPONSE_SECONDS: Final = 2.0
