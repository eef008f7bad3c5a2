"""Owns the calls of the proxy that are streams: heartbeats, sending and reading.

A stream of a client outlives the broker that it was passed to: another one takes over, and what was
not answered is answered here.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from grpc import aio

from moldau.client.queue.channels import HEARTBEAT, READ_FROM, SEND_BATCH, Method
from moldau.client.queue.rpc import PAUSE_SECONDS, PAUSE_SECONDS_MAX, CallFailed, RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proxy.consumers import ConsumerTable
from moldau.proxy.rpc_errors import Context, refuse
from moldau.proxy.unary_handlers import UnaryHandlers, decoded, hide_addresses
from moldau.proxy.upstream import Upstream, failed_batch

IN_FLIGHT_MAX: Final = 16
"""Requests of one SendBatch stream that are not answered yet."""
_SEND_SECONDS_MAX: Final = 35.0
_BEAT_SECONDS_MAX: Final = 5.0


class StreamHandlers:
    """The handlers of streams, over bytes."""

    def __init__(self, caller: RpcClient, consumers: ConsumerTable, answers: UnaryHandlers) -> None:
        self._caller = caller
        self._consumers = consumers
        self._answers = answers
        self._turn = 0

    @property
    def handlers(self) -> dict[str, Callable[[Any, Context], Any]]:
        """Of streams both ways."""
        return {HEARTBEAT.name: self.heartbeat, SEND_BATCH.name: self.send_batch}

    # ---- heartbeats

    async def heartbeat(self, requests: object, context: Context) -> None:
        """One answer per heartbeat, from whichever broker is alive."""
        upstream: Upstream | None = None
        try:
            while (data := await context.read()) is not aio.EOF:
                request = await decoded(pb.HeartbeatRequest, data, context)
                answer, upstream = await self._beat(data, upstream, context)
                await context.write(self._passed(request, answer))
        finally:
            if upstream is not None:
                await upstream.close()

    async def _beat(
        self, data: bytes, upstream: Upstream | None, context: Context
    ) -> tuple[bytes, Upstream]:
        failures: dict[str, RpcFailure] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._caller.seconds_max
        pause = PAUSE_SECONDS
        while True:
            if upstream is None:
                upstream = self._upstream(HEARTBEAT, self._any_address())
            found = await upstream.ask(data, _BEAT_SECONDS_MAX)
            if not isinstance(found, RpcFailure):
                return found, upstream
            await upstream.close()
            upstream = None
            failures[found.address] = found
            if not found.may_repeat or loop.time() > deadline:
                await refuse(context, CallFailed(found, failures, self._caller.seconds_max))
            await self._caller.resolver.refresh()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _passed(self, request: pb.HeartbeatRequest, answer: bytes) -> bytes:
        """The answer, without addresses; most have none, and are passed as they are."""
        response = pb.HeartbeatResponse.FromString(answer)
        if not response.HasField("assignment"):
            return answer
        self._consumers.assigned(request.group, request.consumer_id, response.assignment)
        hide_addresses(response.assignment)
        return response.SerializeToString()

    # ---- sending

    async def send_batch(self, requests: object, context: Context) -> None:
        """Requests go to the leaders of their messages; the answers come in the requests' order."""
        waiting: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(IN_FLIGHT_MAX)
        upstreams: dict[str, Upstream] = {}
        pins: dict[str, str] = {}
        tasks: set[asyncio.Task[bytes]] = set()
        answering = asyncio.create_task(_answer(waiting, context), name="proxy-send-answers")
        try:
            while (data := await context.read()) is not aio.EOF:
                request = await decoded(pb.SendBatchRequest, data, context)
                task = asyncio.create_task(self._send(data, request, upstreams, pins))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                # The task writes in its first step: so requests leave in the order they came in.
                await asyncio.sleep(0)
                await waiting.put(task)
            await waiting.put(None)
            await answering
        finally:
            for each in (answering, *tasks):
                each.cancel()
            for upstream in upstreams.values():
                await upstream.close()

    async def _send(
        self,
        data: bytes,
        request: pb.SendBatchRequest,
        upstreams: dict[str, Upstream],
        pins: dict[str, str],
    ) -> bytes:
        """The broker's answer; if there is none, one that says what may have become of them."""
        loop = asyncio.get_running_loop()
        seconds = request.timeout_ms / 1000 + 5.0 if request.timeout_ms > 0 else _SEND_SECONDS_MAX
        deadline = loop.time() + self._caller.seconds_max
        pause = PAUSE_SECONDS
        while True:
            address = self._address_for(request, pins)
            upstream = upstreams.get(address)
            if upstream is None or upstream.is_broken:
                upstream = upstreams[address] = self._upstream(SEND_BATCH, address)
            found = await upstream.ask(data, seconds)
            if not isinstance(found, RpcFailure):
                return found
            if found.is_uncertain or not found.may_repeat or loop.time() > deadline:
                return failed_batch(found, len(request.messages)).SerializeToString()
            pins.pop(request.topic, None)
            await self._caller.resolver.refresh()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _address_for(self, request: pb.SendBatchRequest, pins: dict[str, str]) -> str:
        """The leader of all its messages, if they have one; else a leader of the topic, who passes
        the others on: the same for the whole stream, or requests could overtake each other."""
        view = self._caller.view
        leaders = view.topic_addresses(request.topic)
        if len(leaders) > 1 and all(each.HasField("partition") for each in request.messages):
            numbers = {each.partition for each in request.messages}
            own = view.leader_addresses((request.topic, number) for number in numbers)
            if len(own) == 1:
                return own[0]
        pinned = pins.get(request.topic)
        if pinned is None or (leaders and pinned not in leaders):
            self._turn += 1
            pinned = leaders[self._turn % len(leaders)] if leaders else self._any_address()
            pins[request.topic] = pinned
        return pinned

    # ---- reading

    async def read_from(self, data: bytes, context: Context) -> None:
        """From the partition's leader, and on at the next one if it changes."""
        request = await decoded(pb.ReadFromRequest, data, context)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._caller.seconds_max
        failures: dict[str, RpcFailure] = {}
        pause = PAUSE_SECONDS
        while True:
            address = self._caller.view.leader_address(request.topic, request.partition)
            where = address or self._any_address()
            call = self._caller.channels.read_raw(where, READ_FROM, data)
            try:
                async for answer in call:
                    deadline, pause = loop.time() + self._caller.seconds_max, PAUSE_SECONDS
                    await context.write(answer)
                    data = _rest(request, pb.ReadFromResponse.FromString(answer))
                return
            except aio.AioRpcError as error:
                failure = failures[where] = failure_of(error, where)
            finally:
                call.cancel()
            if not failure.may_repeat or loop.time() > deadline:
                await refuse(context, CallFailed(failure, failures, self._caller.seconds_max))
            await self._caller.resolver.refresh()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    # ---- where

    def _upstream(self, method: Method[Any, Any], address: str) -> Upstream:
        return Upstream(self._caller.channels.stream_raw(address, method), address)

    def _any_address(self) -> str:
        candidates = self._caller.resolver.candidates
        self._turn += 1
        return candidates[self._turn % len(candidates)] if candidates else ""


def _rest(request: pb.ReadFromRequest, answer: pb.ReadFromResponse) -> bytes:
    """What is still to be read, should somebody else have to be asked."""
    request.offset = answer.next_offset
    if request.max_messages:
        request.max_messages = max(1, request.max_messages - len(answer.messages))
    return request.SerializeToString()


async def _answer(waiting: "asyncio.Queue[asyncio.Task[bytes] | None]", context: Context) -> None:
    while (task := await waiting.get()) is not None:
        await context.write(await task)
