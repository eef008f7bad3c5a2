"""The connections of a queue client: one channel per address, and the methods of the API.

Python's gRPC has no public API for custom resolvers or balancers, so there is one channel per
broker, and the caller chooses the address.
"""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from grpc import aio

from moldau import tracing
from moldau.client.errors import InvalidArgumentError
from moldau.client.security import (
    HOST_CHECK,
    PLAIN_TEXT,
    Security,
    Tls,
    check_may_send,
    plain_key,
)
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
    """Channels by address, created on first use; each call carries our credentials."""

    def __init__(self, security: Security = PLAIN_TEXT) -> None:
        """Raises InvalidArgumentError for what gRPC cannot do."""
        self._prefix = security.prefix
        self._credentials = None if security.tls is None else _credentials(security.tls)
        self._metadata = _metadata(security.authorization)
        self._channels: dict[str, aio.Channel] = {}
        self._stubs: dict[tuple[str, str, type], Any] = {}

    def as_caller(self, authorization: str) -> "Channels":
        """The same channels, for calls with the credentials of another; empty: with none."""
        caller = copy.copy(self)
        caller._metadata = _metadata(authorization)
        return caller

    async def call(
        self, address: str, method: Method[Q, A], request: Q, *, seconds_max: float
    ) -> A:
        """Send one request. Raises aio.AioRpcError."""
        channel = self._channel(address)
        stub = self._stubs.get((address, method.name, method.request))
        if stub is None:
            stub = channel.unary_unary(method.path, *method.codec)
            self._stubs[address, method.name, method.request] = stub
        metadata = self._metadata
        if tracing.active is not None:
            metadata = (*(metadata or ()), *tracing.active.metadata())
        response: A = await stub(request, timeout=seconds_max, metadata=metadata)
        return response

    def stream(self, address: str, method: Method[Q, A]) -> "aio.StreamStreamCall[Q, A]":
        """A bidirectional stream."""
        return self._channel(address).stream_stream(method.path, *method.codec)(
            metadata=self._metadata
        )

    def read(self, address: str, method: Method[Q, A], request: Q) -> "aio.UnaryStreamCall[Q, A]":
        """A stream of responses to one request."""
        call = self._channel(address).unary_stream(method.path, *method.codec)
        return call(request, metadata=self._metadata)

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
        channels = list(self._channels.values())
        # Cleared, not replaced: `as_caller` shares them.
        self._channels.clear()
        self._stubs.clear()
        for channel in channels:
            await channel.close()

    def _channel(self, address: str) -> aio.Channel:
        """Raises ClientError if credentials would be sent in plain text."""
        if self._metadata is not None and self._credentials is None:
            check_may_send(address.rpartition(":")[0], self._prefix)
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None:
                channel = aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            else:
                channel = aio.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel


def _metadata(authorization: str) -> tuple[tuple[str, str], ...] | None:
    return (("authorization", authorization),) if authorization else None


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """gRPC has no more options than these; versions and ciphers are its own."""
    if not tls.checks_host:
        raise InvalidArgumentError(
            f"gRPC always checks host names: option {tls.prefix}{HOST_CHECK} cannot disable it",
            hint="use a name in the certificate",
        )
    return grpc.ssl_channel_credentials(
        tls.authorities.encode() or None,
        plain_key(tls).encode() or None,
        tls.chain.encode() or None,
    )


_CLOSE_SECONDS: Final = 5.0
_closing: Final = set[asyncio.Future[None]]()
"""asyncio itself only has weak references to tasks."""
