"""Owns the HTTP listener: a bound socket, and a web server that starts when it is first needed.

starlette and uvicorn cost tens of milliseconds and several megabytes to import, and most brokers
are started, used over Kafka and stopped without one HTTP request. So the socket listens at once,
and the first connection waits in its backlog while a thread imports the rest; the event loop goes
on serving clients and peers. This module must therefore import neither of them.
"""

import asyncio
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from moldau.net.sockets import OS_SOCKETS, Sockets

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from moldau.api.broker import Broker
    from moldau.api.metric_sources import MetricSources
    from moldau.edge.http.web_server import WebServer

log = logging.getLogger(__name__)


class HttpLimits(Struct, frozen=True, kw_only=True):
    """What protects the broker from those who connect."""

    connections_max: int = 256
    keep_alive_seconds_max: int = 10
    """A connection without a request is closed after this."""
    request_seconds_max: float = 10.0
    """So long may a request take to arrive."""
    reply_stall_seconds_max: float = 60.0
    """So long may a client read nothing of a reply that waits for it."""
    backlog: int = 128
    held_bytes_max: int = 64 * 1024 * 1024
    """So much may bodies and large replies take that are on their way, all together."""


class ConnectionCounts(Struct, kw_only=True):
    """Counted by the web server, for who wants to know."""

    open: int = 0
    accepted_total: int = 0
    refused_total: int = 0
    """Above the cap."""


DEFAULT_LIMITS: Final = HttpLimits()


class HttpListener:
    """One HTTP address. Bind it, start it when the broker can answer, stop it once."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        make_app: Callable[[], "ASGIApp"],
        limits: HttpLimits = DEFAULT_LIMITS,
        counted: ConnectionCounts | None = None,
        on_stop: Callable[[], None] = lambda: None,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`make_app` is called in another thread, when the first connection has come; `on_stop`
        ends what would go on for ever."""
        self._sockets = sockets
        self._loop = loop
        self._make_app = make_app
        self._limits = limits
        self._counted = counted or ConnectionCounts()
        self._on_stop = on_stop
        self._socket: socket.socket | None = None
        self._engine: WebServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_loaded(self) -> bool:
        """Somebody has connected, and the web server runs."""
        return self._engine is not None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; returns it (port 0 picks a free one). Raises OSError."""
        self._socket = sock = self._sockets.bound(host, port)
        name = sock.getsockname()
        return name[0], name[1]

    def start(self) -> None:
        """Begin to listen: before this, clients see a closed port and try again. Raises OSError."""
        if self._socket is None:
            raise RuntimeError("bind first")
        self._socket.listen(self._limits.backlog)
        self._loop.add_reader(self._socket, self._on_first_connection, self._socket)

    def _on_first_connection(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._serving = self._loop.create_task(self._serve(sock))
        self._serving.add_done_callback(self._on_end)

    async def _serve(self, sock: socket.socket) -> None:
        engine = await self._loop.run_in_executor(None, self._load)
        self._engine = engine
        await engine.serve([sock])

    def _load(self) -> "WebServer":
        from moldau.edge.http.web_server import WebServer

        return WebServer(self._make_app(), self._limits, self._counted)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A defect here costs the broker its HTTP, and nothing else: Kafka clients stay served."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("HTTP is served no more", exc_info=error)
        self._close()

    async def stop(self, grace_seconds: float) -> None:
        """Accept nobody any more, let requests finish for so long, then cut what is left."""
        serving, engine = self._serving, self._engine
        if serving is None:
            if self._socket is not None:
                self._loop.remove_reader(self._socket)
        elif engine is None:
            serving.cancel()
            await asyncio.wait({serving})
        else:
            engine.stop()
            self._on_stop()
            _, late = await asyncio.wait({serving}, timeout=grace_seconds)
            if late:
                engine.cut()
                await asyncio.wait({serving})
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def listener_for(
    broker: "Broker",
    vitals: "MetricSources",
    *,
    loop: AbstractEventLoop,
    limits: HttpLimits = DEFAULT_LIMITS,
    cors_origins: Sequence[str] = (),
    sockets: Sockets = OS_SOCKETS,
) -> HttpListener:
    """The listener of a broker's whole HTTP interface."""
    counted = ConnectionCounts()
    followed: list[Callable[[], None]] = []

    def make_app() -> "ASGIApp":
        from moldau.edge.http.app import build_app

        app = build_app(
            broker, vitals, limits=limits, connections=counted, cors_origins=cors_origins
        )
        followed.append(app.stop)
        return app

    def on_stop() -> None:
        for stop in followed:
            stop()

    return HttpListener(
        loop=loop,
        make_app=make_app,
        limits=limits,
        counted=counted,
        on_stop=on_stop,
        sockets=sockets,
    )
