"""Owns sending: which partition a message is for, to whom it goes, and what became of it.

A message with a key goes where Kafka's clients would send it; those without go to one partition for
a request, and the next one to another. A message is sent again only if it is known that it was not
written; else its fate is told as uncertain.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from moldau.client.errors import ClientError, SendFailedError
from moldau.client.queue.channels import SEND
from moldau.client.queue.cluster_view import ClusterView
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.rpc import PAUSE_SECONDS, PAUSE_SECONDS_MAX, CallFailed, RpcClient
from moldau.client.queue.rpc_failures import error_for
from moldau.client.queue.send_stream import SendChunk, SendOutcome, SendStream, size_of
from moldau.proto.v1 import queue_pb2 as pb
from moldau.records.murmur2 import partition_of

CHUNK_MESSAGES_MAX: Final = 200
CHUNK_BYTES_MAX: Final = 512 * 1024
REQUEST_BYTES_MAX: Final = 6 * 1024 * 1024 - 4096
"""What brokers take, less what surrounds a message."""
IN_FLIGHT_MAX: Final = 8
"""Requests of one stream that are not answered yet."""
UNCERTAIN_HINT: Final = "it may be there all the same: send it again only if a double does no harm"
_AGAIN: Final = frozenset({pb.NOT_LEADER, pb.UNAVAILABLE, pb.BUSY})


class QueueSender:
    """Sends for one client."""

    def __init__(self, caller: RpcClient) -> None:
        self._caller = caller
        self._turn = 0

    # ---- one

    async def send(
        self, topic: str, message: pb.OutgoingMessage, acks: "pb.Acks.ValueType", seconds_max: float
    ) -> Sent:
        """Send one message. Raises ClientError; SendFailedError if it may be there all the same."""
        chosen: int | None = None

        def route(view: ClusterView) -> list[str]:
            nonlocal chosen
            chosen = self._partition(view, topic, message)
            address = None if chosen is None else view.leader_address(topic, chosen)
            return [] if address is None else [address]

        async def once(address: str, seconds: float) -> pb.SendResponse:
            request = pb.SendRequest(
                topic=topic, message=message, acks=acks, timeout_ms=max(1, int(seconds * 1000))
            )
            if chosen is not None:
                request.message.partition = chosen
            # The broker has the time that there is; its answer has a little more.
            return await self._caller.channels.call(
                address, SEND, request, seconds_max=seconds + _ANSWER_SECONDS
            )

        try:
            answer = await self._caller.patiently(
                once, route=route, seconds_max=seconds_max, repeats=False
            )
        except CallFailed as failed:
            error = failed.error(f"send to {topic}")
            if not failed.failure.is_uncertain:
                raise error from failed.__cause__
            raise SendFailedError(
                str(error), {0: error}, [None], is_uncertain=True, hint=UNCERTAIN_HINT
            ) from failed.__cause__
        return Sent(topic, answer.partition, answer.offset)

    # ---- many

    async def send_many(
        self,
        topic: str,
        messages: Iterable[pb.OutgoingMessage],
        acks: "pb.Acks.ValueType",
        seconds_max: float,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> list[Sent]:
        """Send all, and say where each went. Raises SendFailedError with what failed."""
        outcome = SendOutcome(topic)
        run = _Run(self, outcome, acks, seconds_max, in_flight_max)
        await run.once(enumerate(messages))
        deadline = time.monotonic() + seconds_max
        pause = PAUSE_SECONDS
        while outcome.again and time.monotonic() < deadline:
            await self._caller.resolver.refresh()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
            again, outcome.again = outcome.again, {}
            await run.once((index, failed.message) for index, failed in sorted(again.items()))
        for index, failed in outcome.again.items():
            outcome.errors[index] = failed.error(topic, seconds_max)
        return outcome.result()

    def lane(self, address: str, run: "_Run") -> SendStream:
        return SendStream(
            self._caller.channels,
            address,
            run.outcome,
            acks=run.acks,
            seconds_max=run.seconds_max,
            in_flight_max=run.in_flight_max,
        )

    def place(
        self, topic: str, message: pb.OutgoingMessage, sticky: int | None
    ) -> tuple[int | None, str]:
        """The partition that a message is for, if that is known, and whom it is sent to."""
        view = self._caller.view
        chosen = self._partition(view, topic, message, sticky)
        address = None if chosen is None else view.leader_address(topic, chosen)
        if address is None:
            candidates = self._caller.resolver.candidates
            return None, candidates[0] if candidates else ""
        return chosen, address

    def next_partition(self, topic: str) -> int | None:
        """For messages without a key: the partitions in turn, of those that somebody leads."""
        view = self._caller.view
        known = view.topics.get(topic)
        led = [] if known is None else [n for n in known.leaders if view.leader_address(topic, n)]
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
        known = view.topics.get(topic)
        if known is None or not known.leaders:
            return None
        if message.HasField("key"):
            return partition_of(message.key, len(known.leaders))
        return self.next_partition(topic) if sticky is None else sticky


class _Run:
    """One call of send_many: a lane per broker, each with a chunk that is being filled."""

    def __init__(
        self,
        sender: QueueSender,
        outcome: SendOutcome,
        acks: "pb.Acks.ValueType",
        seconds_max: float,
        in_flight_max: int,
    ) -> None:
        self._sender = sender
        self.outcome = outcome
        self.acks = acks
        self.seconds_max = seconds_max
        self.in_flight_max = in_flight_max

    async def once(self, messages: Iterable[tuple[int, pb.OutgoingMessage]]) -> None:
        topic = self.outcome.topic
        lanes: dict[str, SendStream] = {}
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
                    self.outcome.errors[index] = _too_large(topic, size)
                    continue
                chosen, address = self._sender.place(topic, message, sticky)
                chunk = filling.get(address)
                if chunk is not None and chunk.size + size > CHUNK_BYTES_MAX:
                    # So a large one shares its request, and its fate, with no other.
                    await self._put(lanes, address, filling.pop(address))
                    chunk = None
                if chunk is None:
                    chunk = filling[address] = SendChunk()
                chunk.add(index, message, chosen)
                if len(chunk) >= CHUNK_MESSAGES_MAX or chunk.size >= CHUNK_BYTES_MAX:
                    await self._put(lanes, address, filling.pop(address))
            for address, chunk in filling.items():
                await self._put(lanes, address, chunk)
            await asyncio.gather(*(lane.finish() for lane in lanes.values()))
        finally:
            for lane in lanes.values():
                lane.cancel()

    async def _put(self, lanes: dict[str, SendStream], address: str, chunk: SendChunk) -> None:
        lane = lanes.get(address)
        if lane is None or lane.is_broken:
            lane = lanes[address] = self._sender.lane(address, self)
        await lane.put(chunk)


def _too_large(topic: str, size: int) -> ClientError:
    return error_for(
        "TOO_LARGE",
        f"cannot send to {topic}: the message has {size:,} bytes, and brokers take "
        f"{REQUEST_BYTES_MAX:,} over gRPC",
        hint="send smaller ones; Kafka's protocol carries larger ones",
    )


_ANSWER_SECONDS: Final = 2.0
