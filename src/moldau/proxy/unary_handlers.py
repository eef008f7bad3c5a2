"""The calls with one response: each is forwarded to the broker that can serve it, or to all.

Requests and responses are forwarded as bytes, unless they contain addresses of brokers, which are
hidden from clients, or must be split and merged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from moldau.client.queue.channels import (
    ACK,
    CONNECT,
    CREATE_TOPIC,
    DELETE_GROUP,
    DISCONNECT,
    EXTEND,
    LIST_GROUPS,
    MANAGE_BROKERS,
    NACK,
    PEEK,
    POLL,
    SEND,
    STATS,
    TOPOLOGY,
    Method,
)
from moldau.client.queue.cluster_view import ClusterView
from moldau.client.queue.groups import PEEK_MESSAGES, fetch_peeked, fetch_stats
from moldau.client.queue.rpc import CallFailed, Route, RpcClient, any_broker
from moldau.client.queue.settler import Ack, Extend, Nack, SettleAction, SettleResult
from moldau.model.queue_limits import POLL_MESSAGES_MAX, POLL_WAIT_MS_MAX
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proxy.callers import Caller
from moldau.proxy.consumers import ConsumerTable
from moldau.proxy.rpc_errors import Context, InvalidRequest, authorization_of, refuse_all
from moldau.records.murmur2 import partition_of

_RESPONSE_SECONDS: Final = 0.25
"""Reserved for the response to the client."""
_CALL_REASONS: Final = frozenset(
    {pb.UNKNOWN_CONSUMER, pb.UNKNOWN_GROUP, pb.OTHER_MODE, pb.INVALID_ARGUMENT}
)
"""Reasons that concern the call, not one of its tokens."""

Q = TypeVar("Q", bound=Message)


class UnaryHandlers:
    """The handlers of unary calls; each gets and returns encoded messages.

    Raises CallFailed and InvalidRequest, which the server returns to the client.
    """

    def __init__(self, rpc: RpcClient, consumers: ConsumerTable) -> None:
        """`rpc` finds brokers; calls are made with the credentials of the client."""
        self._rpc = rpc
        self._consumers = consumers
        self._turn = 0

    @property
    def handlers(self) -> dict[str, Callable[[bytes, Context], Any]]:
        return {
            CREATE_TOPIC.name: self.create_topic,
            SEND.name: self.send,
            CONNECT.name: self.connect,
            DISCONNECT.name: self.disconnect,
            POLL.name: self.poll,
            ACK.name: self.ack,
            NACK.name: self.nack,
            EXTEND.name: self.extend,
            STATS.name: self.stats,
            LIST_GROUPS.name: partial(self._forward, LIST_GROUPS),
            PEEK.name: self.peek,
            DELETE_GROUP.name: partial(self._forward, DELETE_GROUP),
            TOPOLOGY.name: self.topology,
            MANAGE_BROKERS.name: partial(self._forward, MANAGE_BROKERS),
        }

    # ---- forwarded

    async def create_topic(self, data: bytes, context: Context) -> bytes:
        response = await self._forward(CREATE_TOPIC, data, context, idempotent=False)
        self._rpc.resolver.refresh_soon()
        return response

    async def send(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.SendRequest, data)
        route = self.route_of(request.topic, request.message)
        return await self._forward(SEND, data, context, route=route, idempotent=False)

    async def connect(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.ConnectRequest, data)
        response = pb.ConnectResponse.FromString(await self._forward(CONNECT, data, context))
        caller = self._caller(context)
        self._consumers.assigned(caller, request.group, response.consumer_id, response.assignment)
        hide_addresses(response.assignment)
        return response.SerializeToString()

    async def disconnect(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.DisconnectRequest, data)
        # Before it leaves: afterwards its unfetched messages could not be given back.
        await self._consumers.forget(self._caller(context), request.group, request.consumer_id)
        return await self._forward(DISCONNECT, data, context)

    async def topology(self, data: bytes, context: Context) -> bytes:
        response = pb.TopologyResponse.FromString(await self._forward(TOPOLOGY, data, context))
        for broker in response.brokers:
            # Clients of a proxy must not bypass it.
            broker.grpc_address = ""
        return response.SerializeToString()

    async def _forward(
        self,
        method: Method[Any, Any],
        data: bytes,
        context: Context,
        *,
        route: Route = any_broker,
        idempotent: bool = True,
    ) -> bytes:
        rpc = self._caller(context).rpc

        async def attempt(address: str, seconds: float) -> bytes:
            return await rpc.channels.call(address, method.raw, data, seconds_max=seconds)

        return await rpc.retry(
            attempt, route=route, seconds_max=self._seconds(context), idempotent=idempotent
        )

    def route_of(self, topic: str, message: pb.OutgoingMessage) -> Route:
        """The route of a message; without a key, the topic's leaders in turn."""
        self._turn += 1
        turn = self._turn

        def route(view: ClusterView) -> list[str]:
            partitions = view.topics.get(topic)
            if not partitions:
                return []
            number = None
            if message.HasField("partition"):
                number = message.partition
            elif message.HasField("key"):
                number = partition_of(message.key, len(partitions))
            if number is not None:
                address = view.leader_address(topic, number)
                return [] if address is None else [address]
            leaders = view.topic_addresses(topic)
            start = turn % len(leaders) if leaders else 0
            return leaders[start:] + leaders[:start]

        return route

    # ---- spread over brokers

    async def poll(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.PollRequest, data)
        if not 0 <= request.max_messages <= POLL_MESSAGES_MAX:
            raise InvalidRequest(f"max_messages must be 0 to {POLL_MESSAGES_MAX}")
        if request.wait_ms < 0 or request.visibility_ms < 0:
            raise InvalidRequest("wait_ms and visibility_ms must be 0 or more")
        wait = min(request.wait_ms, POLL_WAIT_MS_MAX) / 1000
        caller = self._caller(context)
        poller = self._consumers.poller(caller, request)
        try:
            polled = await poller.poll(
                max(1, request.max_messages), wait, visibility_ms=request.visibility_ms
            )
        except CallFailed as failed:
            if failed.failure.is_evicted:
                await self._consumers.forget(caller, request.group, request.consumer_id)
            raise
        if not polled.messages and (failures := poller.outage()):
            failure = next(iter(failures.values()))
            raise CallFailed(failure, failures, wait)
        return pb.PollResponse(messages=polled.messages, is_full=polled.is_full).SerializeToString()

    async def ack(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.AckRequest, data)
        return await self._settle(request, Ack(), context)

    async def nack(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.NackRequest, data)
        delay_ms = request.delay_ms if request.HasField("delay_ms") else None
        return await self._settle(request, Nack(delay_ms, request.reason), context)

    async def extend(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.ExtendRequest, data)
        return await self._settle(request, Extend(request.visibility_ms), context)

    async def _settle(
        self,
        request: pb.AckRequest | pb.NackRequest | pb.ExtendRequest,
        what: SettleAction,
        context: Context,
    ) -> bytes:
        results = await self._caller(context).settler.settle(
            request.group,
            request.consumer_id,
            list(request.tokens),
            what,
            seconds_max=self._seconds(context),
        )
        if results and all(result.reason in _CALL_REASONS for result in results):
            await refuse_all(context, results[0])
        return _settled(results).SerializeToString()

    async def stats(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.StatsRequest, data)
        seconds = self._seconds(context)
        response = await fetch_stats(self._caller(context).rpc, request.group, seconds_max=seconds)
        return response.SerializeToString()

    async def peek(self, data: bytes, context: Context) -> bytes:
        request = decoded(pb.PeekRequest, data)
        count = request.max_messages or PEEK_MESSAGES
        seconds = self._seconds(context)
        response = await fetch_peeked(
            self._caller(context).rpc, request.group, request.topic, count, seconds_max=seconds
        )
        return response.SerializeToString()

    def _caller(self, context: Context) -> Caller:
        return Caller(self._rpc, authorization_of(context))

    def _seconds(self, context: Context) -> float:
        """The deadline of the client, or ours."""
        left: float | None = context.time_remaining()
        if left is None:
            return self._rpc.seconds_max
        # Respond before the client gives up, so that it gets the reason.
        return min(left - min(_RESPONSE_SECONDS, left / 5), self._rpc.seconds_max)


def hide_addresses(assignment: pb.Assignment) -> None:
    """Clients of a proxy must not bypass it."""
    for each in assignment.partitions:
        each.leader_address = ""


def _settled(results: list[SettleResult]) -> pb.SettleResponse:
    response = pb.SettleResponse(done=sum(result.is_done for result in results))
    for index, result in enumerate(results):
        if not result.is_done:
            response.refused.add(index=index, reason=result.name, message=result.message)
    return response


def decoded(kind: type[Q], data: bytes) -> Q:
    """Decode a request. Raises InvalidRequest."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"invalid {kind.DESCRIPTOR.name}") from None
