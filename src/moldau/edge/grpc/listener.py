"""Owns the gRPC listener of a broker: a bound socket, and a server that starts when it is needed.

gRPC takes a tenth of a second and 17 MB to import, and most brokers are started, used over Kafka
and stopped without one call. So the socket listens at once, and the first connections wait in its
backlog while a thread imports the rest. This module must therefore not import it.

gRPC opens its sockets itself: when it is loaded it takes the port over, and relay.py looks after
those who came before.
"""

import asyncio
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from moldau.edge.grpc.relay import Relay
from moldau.model.topology import Endpoint
from moldau.net.reuseport import prefer_second, shared_socket

if TYPE_CHECKING:
    from moldau.api.broker import Broker
    from moldau.edge.grpc.aio_server import AioServer

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
LOOPBACK: Final = "127.0.0.1"


class GrpcLimits(Struct, frozen=True, kw_only=True):
    """What protects the broker from those who connect."""

    connections_max: int = 1024
    calls_max: int = 8192
    """At once; most of them wait."""
    calls_per_connection_max: int = 1024
    request_bytes_max: int = 6 * MIB
    """As batches they go to another broker, which takes 8 MiB at once."""
    answer_bytes_max: int = 64 * MIB
    handshake_ms_max: int = 20_000
    age_ms_max: int = 3_600_000
    early_ms: int = 3_000
    """A connection is renewed after this, when its calls are done; soon if it came so early that
    it is passed on, which costs more."""
    idle_ms_max: int = 600_000
    """A connection without a call is closed after this; clients open it again by themselves."""
    silence_ms_max: int = 30_000
    """A client that is silent for so long is asked whether it is there."""
    ping_ms_min: int = 5_000
    """Who asks more often whether we are there is cut off."""
    backlog: int = 256


DEFAULT_LIMITS: Final = GrpcLimits()

_HANDOVER_SECONDS: Final = 1.0
"""So long may a connection have been on its way when gRPC took over."""

MakeEngine = Callable[[], "AioServer"]


class GrpcListener:
    """One gRPC address. Bind it, start it when the broker can answer, stop it once."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        load: Callable[[], MakeEngine],
        limits: GrpcLimits = DEFAULT_LIMITS,
    ) -> None:
        """`load` is called in another thread when the first connection has come, and what it
        returns is called in the loop."""
        self._loop = loop
        self._load = load
        self._limits = limits
        self._socket: socket.socket | None = None
        self._address = ("", 0)
        self._engine: AioServer | None = None
        self._loading: asyncio.Task[None] | None = None
        self._relay = Relay()

    @property
    def is_loaded(self) -> bool:
        """Somebody has connected, and gRPC runs."""
        return self._engine is not None

    @property
    def early_count(self) -> int:
        """Connections that came before, and are still passed on."""
        return self._relay.count

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; returns it (port 0 picks a free one). Raises OSError."""
        self._socket, self._address = shared_socket(host, port)
        return self._address

    def start(self) -> None:
        """Begin to listen: before this, clients see a closed port and try again. Raises OSError."""
        if self._socket is None:
            raise RuntimeError("bind first")
        self._socket.listen(self._limits.backlog)
        self._loop.add_reader(self._socket, self._on_first_connection, self._socket)

    def _on_first_connection(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._loading = self._loop.create_task(self._take_over(sock))
        self._loading.add_done_callback(self._on_loaded)

    async def _take_over(self, sock: socket.socket) -> None:
        make = await self._loop.run_in_executor(None, self._load)
        engine = make()
        # Both listen for a while, so that nobody finds the port closed.
        early_port = engine.bind(str(Endpoint(*self._address)))
        prefer_second(sock)
        self._engine = engine
        await engine.start()

        def pass_on() -> None:
            self._relay.pass_on(_accept_all(sock), LOOPBACK, early_port)

        pass_on()
        self._loop.add_reader(sock, pass_on)
        try:
            await asyncio.sleep(_HANDOVER_SECONDS)
        finally:
            self._loop.remove_reader(sock)
            pass_on()
            self._close()

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        """A defect here costs the broker its gRPC, and nothing else: Kafka clients stay served."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("gRPC is not served", exc_info=error)
            self._close()

    async def stop(self, grace_seconds: float) -> None:
        """Refuse who waits, let calls finish for so long, then cut them."""
        loading = self._loading
        if loading is None:
            if self._socket is not None:
                self._loop.remove_reader(self._socket)
        elif not loading.done():
            loading.cancel()
            await asyncio.wait({loading})
        if self._engine is not None:
            await self._engine.stop(grace_seconds)
        await self._relay.stop()
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _accept_all(sock: socket.socket) -> list[socket.socket]:
    sock.setblocking(False)
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = sock.accept()
        except BlockingIOError:
            return accepted
        except OSError:
            # That one has gone, or there is no descriptor for it.
            log.debug("a connection could not be accepted", exc_info=True)
            return accepted
        connection.setblocking(False)
        accepted.append(connection)


def listener_for(
    broker: "Broker", *, loop: AbstractEventLoop, limits: GrpcLimits = DEFAULT_LIMITS
) -> GrpcListener:
    """The listener of a broker's whole gRPC API."""

    def load() -> MakeEngine:
        from moldau.edge.grpc.aio_server import AioServer

        return lambda: AioServer(broker, limits)

    return GrpcListener(loop=loop, load=load, limits=limits)
