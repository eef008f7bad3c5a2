"""The connections of a queue client: one channel per address, and the methods of the API.

Python's gRPC has no public API for custom resolvers or balancers, so there is one channel per
broker, and the caller chooses the address.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from grpc import aio

from moldau.proto.v1 import queue_pb2 as pb

SERVICE: Final = "moldau.v1.Queue"
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest request and response."""

CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Reconnect to a restarted broker within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detects machines that vanished without closing the connection.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are decided by this client, for each kind of call.
    ("grpc.enable_retries", 0),
    # Brokers are reached directly, without the HTTP proxy of the environment.
    ("grpc.enable_http_proxy", 0),
]

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A method of the API, with the types of its request and response."""

    name: str
    request: type[Q]
    response: type[A]

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"

    @property
    def codec(self) -> tuple[Callable[[Q], bytes] | None, Callable[[bytes], A] | None]:
        """Serializer and deserializer; None for encoded messages."""
        serialize = getattr(self.request, "SerializeToString", None)
        return serialize, getattr(self.response, "FromString", None)

    @property
    def raw(self) -> "Method[bytes, bytes]":
        """The same method with encoded messages."""
        return Method(self.name, bytes, bytes)


CREATE_TOPIC: Final = Method("CreateTopic", pb.CreateTopicRequest, pb.CreateTopicResponse)
SEND: Final = Method("Send", pb.SendRequest, pb.SendResponse)
SEND_BATCH: Final = Method("SendBatch", pb.SendBatchRequest, pb.SendBatchResponse)
CONNECT: Final = Method("Connect", pb.ConnectRequest, pb.ConnectResponse)
DISCONNECT: Final = Method("Disconnect", pb.DisconnectRequest, pb.DisconnectResponse)
HEARTBEAT: Final = Method("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse)
POLL: Final = Method("Poll", pb.PollRequest, pb.PollResponse)
ACK: Final = Method("Ack", pb.AckRequest, pb.SettleResponse)
NACK: Final = Method("Nack", pb.NackRequest, pb.SettleResponse)
EXTEND: Final = Method("Extend", pb.ExtendRequest, pb.SettleResponse)
STATS: Final = Method("Stats", pb.StatsRequest, pb.StatsResponse)
LIST_GROUPS: Final = Method("ListGroups", pb.ListGroupsRequest, pb.ListGroupsResponse)
PEEK: Final = Method("Peek", pb.PeekRequest, pb.PeekResponse)
DELETE_GROUP: Final = Method("DeleteGroup", pb.DeleteGroupRequest, pb.DeleteGroupResponse)
READ_FROM: Final = Method("ReadFrom", pb.ReadFromRequest, pb.ReadFromResponse)
TOPOLOGY: Final = Method("Topology", pb.TopologyRequest, pb.TopologyResponse)
MANAGE_BROKERS: Final = Method("ManageBrokers", pb.ManageBrokersRequest, pb.ManageBrokersResponse)


class Channels:
    """Channels by address, created on first use."""

    def __init__(self) -> None:
        self._channels: dict[str, aio.Channel] = {}
        self._stubs: dict[tuple[str, str, type], Any] = {}

    async def call(
        self, address: str, method: Method[Q, A], request: Q, *, seconds_max: float
    ) -> A:
        """Send one request. Raises aio.AioRpcError."""
        stub = self._stubs.get((address, method.name, method.request))
        if stub is None:
            stub = self._channel(address).unary_unary(method.path, *method.codec)
            self._stubs[address, method.name, method.request] = stub
        response: A = await stub(request, timeout=seconds_max)
        return response

    def stream(self, address: str, method: Method[Q, A]) -> "aio.StreamStreamCall[Q, A]":
        """A bidirectional stream."""
        return self._channel(address).stream_stream(method.path, *method.codec)()

    def read(self, address: str, method: Method[Q, A], request: Q) -> "aio.UnaryStreamCall[Q, A]":
        """A stream of responses to one request."""
        return self._channel(address).unary_stream(method.path, *method.codec)(request)

    def is_connected(self, address: str) -> bool:
        channel = self._channels.get(address)
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY

    def keep_only(self, addresses: set[str]) -> None:
        """Close the channels of brokers that left the cluster; running calls may finish."""
        for address in [known for known in self._channels if known not in addresses]:
            channel = self._channels.pop(address)
            for key in [key for key in self._stubs if key[0] == address]:
                del self._stubs[key]
            if channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:
                closing = asyncio.ensure_future(channel.close(_CLOSE_SECONDS))
                _closing.add(closing)
                closing.add_done_callback(_closing.discard)

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        self._stubs.clear()
        for channel in channels:
            await channel.close()

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel


_CLOSE_SECONDS: Final = 5.0
_closing: Final = set[asyncio.Future[None]]()
"""asyncio itself only has weak references to tasks."""
