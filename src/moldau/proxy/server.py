"""The gRPC server of the proxy: handlers, health, reflection and shutdown.

It also starts without brokers, and responds UNAVAILABLE until one is reachable.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from moldau.client.errors import ClientError
from moldau.client.queue.channels import MESSAGE_BYTES_MAX, READ_FROM, SERVICE, Channels
from moldau.client.queue.resolver import Resolver
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.security import PLAIN_TEXT, Security
from moldau.proxy.consumers import ConsumerTable
from moldau.proxy.rpc_errors import (
    Context,
    InvalidRequest,
    authorization_of,
    refuse,
    refuse_unknown,
)
from moldau.proxy.stream_handlers import StreamHandlers
from moldau.proxy.unary_handlers import UnaryHandlers

log = logging.getLogger(__name__)

CALLS_MAX: Final = 10_000
REFRESH_SECONDS: Final = 5.0
CALL_SECONDS_MAX: Final = 15.0
_STOP_SECONDS: Final = 2.0
_HEALTH_SECONDS: Final = 0.5
_REPORTED_MAX: Final = 16

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Two proxies on one port would share the clients at random.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


class Proxy:
    """A proxy that listens at `listen`, for the cluster of `seeds`."""

    def __init__(
        self,
        listen: str,
        seeds: Sequence[str],
        *,
        seconds_max: float = CALL_SECONDS_MAX,
        refresh_seconds: float = REFRESH_SECONDS,
        security: Security = PLAIN_TEXT,
        lends_certificate: bool = False,
    ) -> None:
        """`security`: TLS to the brokers, and the proxy's own user, which only looks for brokers.

        Calls of clients carry the clients' credentials. A certificate of the proxy is part of the
        connection: calls without credentials would have its rights, and are refused unless
        `lends_certificate`.
        """
        has_certificate = security.tls is not None and bool(security.tls.chain)
        self._needs_credentials = has_certificate and not lends_certificate
        self._listen = listen
        self._channels = Channels(security)
        self._resolver = Resolver(
            seeds, self._channels, refresh_seconds=refresh_seconds, security=security
        )
        self._rpc = RpcClient(self._channels, self._resolver, seconds_max=seconds_max)
        self._consumers: ConsumerTable | None = None
        self._server: aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._watching: asyncio.Task[None] | None = None
        self._reported: set[str] = set()
        """Reasons why no broker is reachable that were logged."""
        self.port = 0

    @property
    def brokers(self) -> list[str]:
        """The brokers that are alive."""
        return self._resolver.view.alive_addresses if self._resolver.has_response else []

    @property
    def trouble(self) -> str:
        """Why no broker is reachable; empty: one is."""
        return self._resolver.trouble

    async def start(self) -> None:
        """Listen. Raises ClientError if the address is not available."""
        await self._resolver.refresh()
        self._resolver.keep_refreshing()
        self._consumers = ConsumerTable()
        unary = UnaryHandlers(self._rpc, self._consumers)
        streams = StreamHandlers(self._rpc, self._consumers)
        server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        handlers = _handlers(unary, streams, needs_credentials=self._needs_credentials)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            self.port = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            await self.stop()
            raise ClientError(
                f"cannot listen at {self._listen}",
                hint="is the port in use? choose another: --listen :PORT",
            ) from error
        self._server = server
        await server.start()
        await self._update_health()
        # Who starts the proxy says the first.
        self._reported = {self.trouble} - {""}
        self._watching = asyncio.create_task(self._watch(), name="proxy-health")

    async def stop(self) -> None:
        """End all polls, give back unfetched messages, and let calls finish."""
        if self._watching is not None:
            self._watching.cancel()
        await self._health.enter_graceful_shutdown()
        if self._consumers is not None:
            await self._consumers.close()
        if self._server is not None:
            await self._server.stop(_STOP_SECONDS)
        await self._resolver.close()
        await self._channels.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_HEALTH_SECONDS)
            await self._update_health()
            self._log_trouble()

    def _log_trouble(self) -> None:
        """Once for each reason: of a name with two addresses, gRPC says now one, now the other."""
        trouble = self.trouble
        if not trouble and self._reported:
            self._reported.clear()
            log.warning("a broker is reachable again")
        elif trouble and trouble not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(trouble)
            log.warning("no broker reachable (%s), retrying", trouble)

    async def _update_health(self) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self._resolver.has_response else kinds.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)


def _handlers(
    unary: UnaryHandlers, streams: StreamHandlers, *, needs_credentials: bool
) -> dict[str, Any]:
    def guarded(name: str, work: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
        return _guarded(name, work, needs_credentials=needs_credentials)

    found: dict[str, Any] = {}
    for name, handler in unary.handlers.items():
        found[name] = grpc.unary_unary_rpc_method_handler(guarded(name, handler))
    for name, stream in streams.handlers.items():
        found[name] = grpc.stream_stream_rpc_method_handler(guarded(name, stream))
    found[READ_FROM.name] = grpc.unary_stream_rpc_method_handler(
        guarded(READ_FROM.name, streams.read_from)
    )
    return found


def _guarded(
    name: str, work: Callable[[Any, Context], Any], *, needs_credentials: bool
) -> Callable[[Any, Context], Any]:
    """Return failures to the client; an internal error ends only its call, and is logged."""

    async def handle(request: Any, context: Context) -> Any:
        try:
            if needs_credentials and not authorization_of(context):
                await refuse_unknown(context)
            return await work(request, context)
        except (aio.AbortError, asyncio.CancelledError):
            raise
        except (CallFailed, InvalidRequest) as error:
            await refuse(context, error)
        except ClientError as error:
            # Such as credentials that would leave this machine in plain text.
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            log.error("internal error of the proxy in %s", name, exc_info=error)
            await context.abort(
                grpc.StatusCode.INTERNAL,
                "internal error of the proxy",
                (("moldau-reason", "INTERNAL"),),
            )

    return handle
