"""Owns how grpc.aio runs inside a broker: its bounds, reflection, health, and its stop.

It shares the broker's event loop. gRPC reads and writes sockets in threads of its own, in C, and
wakes the loop when a call has something for it.
"""

import asyncio
import errno
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import DESCRIPTOR as HEALTH
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from moldau.api.broker import Broker
from moldau.edge.grpc.calls import Calls
from moldau.edge.grpc.listener import LOOPBACK, GrpcLimits
from moldau.edge.grpc.service import SERVICE, handlers

_REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


class AioServer:
    """Made, bound and started in the broker's loop; stopped once.

    Two servers with the same calls: one for the broker's address, and one for the relay, whose
    connections are to be renewed soon.
    """

    def __init__(self, broker: Broker, limits: GrpcLimits) -> None:
        self._limits = limits
        self._calls = Calls()
        self._health = health.aio.HealthServicer()
        self._handlers = handlers(broker, self._calls)
        self._servers = [self._make_server(limits.age_ms_max), self._make_server(limits.early_ms)]

    def _make_server(self, age_ms_max: int) -> aio.Server:
        server = aio.server(
            options=_options(self._limits, age_ms_max),
            maximum_concurrent_rpcs=self._limits.calls_max,
        )
        names = (SERVICE, HEALTH.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        # The same messages as in v1alpha, under the name that tools ask for first.
        reflecting = grpc.stream_stream_rpc_method_handler(
            reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, self._handlers),
                grpc.method_handlers_generic_handler(
                    _REFLECTION_V1, {"ServerReflectionInfo": reflecting}
                ),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(names, server)
        return server

    def bind(self, address: str) -> int:
        """Begin to listen there, and at a port of loopback for the relay, which is returned.

        Raises OSError.
        """
        main, early = self._servers
        try:
            main.add_insecure_port(address)
            return early.add_insecure_port(f"{LOOPBACK}:0")
        except RuntimeError as error:
            # It does not say why; somebody else was quicker, as far as can be known.
            raise OSError(errno.EADDRINUSE, str(error)) from None

    async def start(self) -> None:
        for server in self._servers:
            await server.start()
        await self._health.set(SERVICE, HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse who waits and who comes, let calls finish for so long, then cut them."""
        await self._health.enter_graceful_shutdown()
        self._calls.stop()
        await asyncio.gather(*(server.stop(grace_seconds) for server in self._servers))


def _options(limits: GrpcLimits, age_ms_max: int) -> list[tuple[str, int]]:
    return [
        # To take the port over from the listener that waited for the first connection. That no
        # two brokers have the same is seen to before, in server/ports.py.
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", limits.answer_bytes_max),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms_max),
        ("grpc.max_connection_idle_ms", limits.idle_ms_max),
        ("grpc.max_connection_age_ms", age_ms_max),
        ("grpc.keepalive_time_ms", limits.silence_ms_max),
        ("grpc.keepalive_timeout_ms", limits.handshake_ms_max),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.ping_ms_min),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
