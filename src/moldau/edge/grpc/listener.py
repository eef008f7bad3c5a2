"""The gRPC listener of a broker: its limits, reflection, health checks, start and stop.

It shares the broker's event loop. gRPC reads and writes sockets in threads of its own, in C, and
wakes the loop when a call has something for it.
"""

import asyncio
import errno
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec import Struct

from moldau.api.connections import ConnectionShown
from moldau.api.entrance import Entrance
from moldau.edge.grpc.calls import CALLS_PER_ADDRESS_MAX, Calls
from moldau.edge.grpc.health import HEALTH_SERVICE, HealthChecks
from moldau.edge.grpc.service import SERVICE, handlers
from moldau.edge.grpc.tls_credentials import server_credentials
from moldau.model import log_events as events
from moldau.model.queue_limits import SEND_REQUEST_BYTES_MAX
from moldau.model.topology import Endpoint
from moldau.net.sockets import OS_SOCKETS
from moldau.net.tls.contexts import TlsContexts

if TYPE_CHECKING:
    from moldau.edge.grpc.calls import Handler

log = logging.getLogger(__name__)

_REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


class GrpcLimits(Struct, frozen=True, kw_only=True):
    """They protect the broker from its clients."""

    connections_max: int = 1024
    calls_max: int = 8192
    """Concurrent calls; most of them wait."""
    calls_per_address_max: int = CALLS_PER_ADDRESS_MAX
    calls_per_connection_max: int = 1024
    health_calls_max: int = 64
    """Of those; anyone may make them."""
    request_ms_max: int = 30_000
    """A client that sends no request for so long holds the place of another one."""
    request_bytes_max: int = SEND_REQUEST_BYTES_MAX
    response_bytes_max: int = 64 * 1024 * 1024
    handshake_ms_max: int = 20_000
    age_ms_max: int = 3_600_000
    """Older connections are closed when their calls are done; clients reconnect."""
    idle_ms_max: int = 60_000
    """Connections without calls are closed after this; clients reconnect when needed."""
    keepalive_ms: int = 30_000
    """A client that sends nothing for this long is pinged."""
    ping_ms_min: int = 5_000
    """Clients that send keepalive pings more often are disconnected."""


DEFAULT_LIMITS: Final = GrpcLimits()


class GrpcListener:
    """One gRPC address. Bind it, start it when the broker is ready, stop it once."""

    def __init__(
        self,
        entrance: Entrance,
        *,
        loop: AbstractEventLoop,
        limits: GrpcLimits = DEFAULT_LIMITS,
        tls: TlsContexts | None = None,
    ) -> None:
        self._entrance = entrance
        self._loop = loop
        self._limits = limits
        self._tls = tls
        self._reserved: socket.socket | None = None
        self._shared: Endpoint | None = None
        self._server: aio.Server | None = None
        self._starting: asyncio.Task[None] | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Reserve the address and return it (port 0: a free one). Raises OSError.

        The port stays closed: gRPC binds and listens in one step, in `start`.
        """
        self._reserved = OS_SOCKETS.bound(host, port)
        address, bound_port = self._reserved.getsockname()[:2]
        return address, bound_port

    def share(self, address: Endpoint) -> None:
        """Serve this address, too, together with other processes that do the same."""
        self._shared = address

    def start(self) -> None:
        """Listen and serve. Call it in the loop. Raises OSError."""
        if self._reserved is None:
            raise RuntimeError("bind first")
        limits = self._limits
        self._calls = Calls(
            self._entrance,
            request_seconds_max=limits.request_ms_max / 1000,
            calls_per_address_max=limits.calls_per_address_max,
        )
        self._health = HealthChecks(calls_max=limits.health_calls_max)
        server = self._make_server()
        try:
            own = Endpoint(*self._reserved.getsockname()[:2])
            for address in (own,) if self._shared is None else (own, self._shared):
                if self._tls is None:
                    server.add_insecure_port(str(address))
                else:
                    server.add_secure_port(str(address), server_credentials(self._tls))
        except RuntimeError as error:
            # gRPC does not report the reason; most likely another process took the port.
            raise OSError(errno.EADDRINUSE, str(error)) from None
        self._release()
        self._server = server
        self._starting = self._loop.create_task(self._serve(server))
        self._starting.add_done_callback(_log_failure)

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        if self._server is None:
            return 0, []
        return self._calls.clients.open_connections(most, wall_ms)

    async def _serve(self, server: aio.Server) -> None:
        await server.start()
        self._health.serve(SERVICE)

    async def stop(self, grace_seconds: float) -> None:
        """Reject waiting and new calls, let others finish for `grace_seconds`, then cancel them."""
        self._release()
        if self._server is None or self._starting is None:
            return
        await asyncio.wait({self._starting})
        self._health.stop()
        self._calls.stop()
        await self._server.stop(grace_seconds)

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _make_server(self) -> aio.Server:
        server = aio.server(
            options=_options(self._limits, shares=self._shared is not None),
            maximum_concurrent_rpcs=self._limits.calls_max,
        )
        names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
        # The same messages under both names, of which tools try v1 first.
        reflecting = {"ServerReflectionInfo": self._reflection(names)}
        served = {
            SERVICE: handlers(self._calls),
            HEALTH_SERVICE: self._health.handlers(self._calls),
        }
        served |= {_REFLECTION_V1: reflecting, reflection.SERVICE_NAME: reflecting}
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*one) for one in served.items())
        )
        return server

    def _reflection(self, names: tuple[str, ...]) -> "Handler":
        """It shows the same to all, so it needs a known client, but no rights."""
        servicer, calls = reflection.aio.ReflectionServicer(names), self._calls

        async def reflect(requests: Any, context: Any) -> AsyncIterator[Any]:
            await calls.admit(context)
            async for reply in servicer.ServerReflectionInfo(requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(
            reflect,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )


def _log_failure(task: asyncio.Task[None]) -> None:
    """The broker keeps serving its other protocols."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical(
            "cannot start the gRPC server; gRPC is not served",
            exc_info=error,
            extra=events.GRPC_NOT_STARTED(),
        )


def _options(limits: GrpcLimits, *, shares: bool) -> list[tuple[str, int]]:
    return [
        # No second process may listen on the same address, but those of its node.
        ("grpc.so_reuseport", int(shares)),
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", limits.response_bytes_max),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms_max),
        ("grpc.max_connection_idle_ms", limits.idle_ms_max),
        ("grpc.max_connection_age_ms", limits.age_ms_max),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.handshake_ms_max),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.ping_ms_min),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
