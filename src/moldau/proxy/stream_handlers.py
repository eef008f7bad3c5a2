"""The streaming calls of the proxy: heartbeats, sending and reading.

A client's stream outlives the broker that it is forwarded to: another broker takes over, and the
proxy itself responds to requests that got no response.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from grpc import aio

from moldau.client.queue.channels import HEARTBEAT, READ_FROM, SEND_BATCH, Method
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proxy.callers import Caller
from moldau.proxy.consumers import ConsumerTable
from moldau.proxy.rpc_errors import Context, authorization_of
from moldau.proxy.unary_handlers import decoded, hide_addresses
from moldau.proxy.upstream import Upstream, failed_batch

IN_FLIGHT_MAX: Final = 16
"""Requests in flight of one SendBatch stream."""
_SEND_SECONDS_MAX: Final = 35.0
_HEARTBEAT_SECONDS_MAX: Final = 5.0
_HEARTBEAT_PAUSE_SECONDS_MAX: Final = 1.0
"""A client does not wait longer for the response than a broker may take for it."""


class StreamHandlers:
    """The handlers of streams of encoded messages."""

    def __init__(self, rpc: RpcClient, consumers: ConsumerTable) -> None:
        self._rpc = rpc
        self._consumers = consumers
        self._turn = 0

    @property
    def handlers(self) -> dict[str, Callable[[Any, Context], Any]]:
        """The handlers of bidirectional streams."""
        return {HEARTBEAT.name: self.heartbeat, SEND_BATCH.name: self.send_batch}

    # ---- heartbeats

    async def heartbeat(self, requests: object, context: Context) -> None:
        """One response per heartbeat, from any live broker."""
        upstream: Upstream | None = None
        caller = Caller(self._rpc, authorization_of(context))
        try:
            while (data := await context.read()) is not aio.EOF:
                request = decoded(pb.HeartbeatRequest, data)
                response, upstream = await self._send_heartbeat(caller, data, upstream)
                await context.write(self._forwarded(caller, request, response))
        finally:
            if upstream is not None:
                await upstream.close()

    async def _send_heartbeat(
        self, caller: Caller, data: bytes, upstream: Upstream | None
    ) -> tuple[bytes, Upstream]:
        failures: dict[str, RpcFailure] = {}
        backoff = self._rpc.backoff()
        while True:
            if upstream is None:
                upstream = _upstream(caller, HEARTBEAT, self._any_address())
            found = await upstream.request(data, _HEARTBEAT_SECONDS_MAX)
            if not isinstance(found, RpcFailure):
                return found, upstream
            await upstream.close()
            upstream = None
            failures[found.address] = found
            if not found.is_retriable or backoff.is_over:
                raise CallFailed(found, failures, self._rpc.seconds_max)
            await self._rpc.resolver.refresh()
            await backoff.sleep_async(min(found.retry_seconds, _HEARTBEAT_PAUSE_SECONDS_MAX))

    def _forwarded(self, caller: Caller, request: pb.HeartbeatRequest, data: bytes) -> bytes:
        """The response without addresses; most have none, and are forwarded unchanged."""
        response = pb.HeartbeatResponse.FromString(data)
        if not response.HasField("assignment"):
            return data
        group, name = request.group, request.consumer_id
        self._consumers.assigned(caller, group, name, response.assignment)
        hide_addresses(response.assignment)
        return response.SerializeToString()

    # ---- sending

    async def send_batch(self, requests: object, context: Context) -> None:
        """Forward requests to the leaders of their messages; responses keep the order."""
        waiting: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(IN_FLIGHT_MAX)
        upstreams: dict[str, Upstream] = {}
        pins: dict[str, str] = {}
        caller = Caller(self._rpc, authorization_of(context))
        tasks: set[asyncio.Task[bytes]] = set()
        responding = asyncio.create_task(_respond(waiting, context), name="proxy-send-responses")
        try:
            while (data := await context.read()) is not aio.EOF:
                request = decoded(pb.SendBatchRequest, data)
                task = asyncio.create_task(self._send(caller, data, request, upstreams, pins))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                # The task writes in its first step, so requests are sent in order.
                await asyncio.sleep(0)
                await waiting.put(task)
            await waiting.put(None)
            await responding
        finally:
            for each in (responding, *tasks):
                each.cancel()
            for upstream in upstreams.values():
                await upstream.close()

    async def _send(
        self,
        caller: Caller,
        data: bytes,
        request: pb.SendBatchRequest,
        upstreams: dict[str, Upstream],
        pins: dict[str, str],
    ) -> bytes:
        """The broker's response; if there is none, one that reports the failure."""
        seconds = request.timeout_ms / 1000 + 5.0 if request.timeout_ms > 0 else _SEND_SECONDS_MAX
        backoff = self._rpc.backoff()
        while True:
            address = self._address_for(request, pins)
            upstream = upstreams.get(address)
            if upstream is None or (upstream.is_broken and not upstream.has_to_wait):
                upstream = upstreams[address] = _upstream(caller, SEND_BATCH, address)
            found = await upstream.request(data, seconds)
            if not isinstance(found, RpcFailure):
                return found
            if found.is_uncertain or not found.is_retriable or backoff.is_over:
                return failed_batch(found, len(request.messages)).SerializeToString()
            pins.pop(request.topic, None)
            await self._rpc.resolver.refresh()
            await backoff.sleep_async(found.retry_seconds)

    def _address_for(self, request: pb.SendBatchRequest, pins: dict[str, str]) -> str:
        """The common leader of all messages; else a leader of the topic, which forwards the others:
        the same for the whole stream, so that requests do not overtake each other."""
        view = self._rpc.view
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
        """Read from the partition's leader; continue at the next one if it changes."""
        request = decoded(pb.ReadFromRequest, data)
        caller = Caller(self._rpc, authorization_of(context))
        backoff = self._rpc.backoff()
        failures: dict[str, RpcFailure] = {}
        while True:
            address = self._rpc.view.leader_address(request.topic, request.partition)
            where = address or self._any_address()
            call = caller.rpc.channels.read(where, READ_FROM.raw, data)
            try:
                async for response in call:
                    backoff.restart()
                    await context.write(response)
                    data = _rest(request, pb.ReadFromResponse.FromString(response))
                return
            except aio.AioRpcError as error:
                failure = failures[where] = failure_of(error, where)
            finally:
                call.cancel()
            if not failure.is_retriable or backoff.is_over:
                raise CallFailed(failure, failures, self._rpc.seconds_max)
            await self._rpc.resolver.refresh()
            await backoff.sleep_async(failure.retry_seconds)

    def _any_address(self) -> str:
        candidates = self._rpc.resolver.candidates
        self._turn += 1
        return candidates[self._turn % len(candidates)] if candidates else ""


def _upstream(caller: Caller, method: Method[Any, Any], address: str) -> Upstream:
    return Upstream(caller.rpc.channels.stream(address, method.raw), address)


def _rest(request: pb.ReadFromRequest, response: pb.ReadFromResponse) -> bytes:
    """The request for the rest, in case the leader changes."""
    request.offset = response.next_offset
    if request.max_messages:
        request.max_messages = max(1, request.max_messages - len(response.messages))
    return request.SerializeToString()


async def _respond(waiting: "asyncio.Queue[asyncio.Task[bytes] | None]", context: Context) -> None:
    while (task := await waiting.get()) is not None:
        await context.write(await task)
