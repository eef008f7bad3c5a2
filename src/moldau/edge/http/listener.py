"""The HTTP listener: a bound socket, and a web server that is loaded by the first connection.

starlette and uvicorn cost tens of milliseconds and several megabytes to import, and most brokers
never get an HTTP request. So the socket listens at once, and the first connection waits in its
backlog while a thread imports them; the event loop keeps serving. This module must import neither.
"""

import asyncio
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.edge.http.limits import DEFAULT_LIMITS, ConnectionCounts, HttpLimits
from moldau.edge.http.node.link import NodeLinks, NodeListener
from moldau.edge.http.relay.serving import Exchanges, RelayPeers
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.contexts import TlsContexts

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from moldau.api.connections import ConnectionShown
    from moldau.api.entrance import Entrance
    from moldau.api.metric_sources import MetricSources
    from moldau.edge.http.web_server import WebServer

log = logging.getLogger(__name__)


class HttpListener:
    """One HTTP address: bind it, start it when the broker is ready, stop it once."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        make_app: Callable[[], "ASGIApp"],
        limits: HttpLimits = DEFAULT_LIMITS,
        counted: ConnectionCounts | None = None,
        on_stop: Callable[[], None] = lambda: None,
        sockets: Sockets = OS_SOCKETS,
        tls: TlsContexts | None = None,
        clock: Clock | None = None,
        name: str = "http",
    ) -> None:
        """`make_app` is called in a thread, for the first connection or relayed request; `on_stop`
        must end responses that stream indefinitely."""
        self._name = name
        self._sockets = sockets
        self._tls = tls
        self._clock = clock
        self._loop = loop
        self._make_app = make_app
        self._limits = limits
        self._counted = counted or ConnectionCounts()
        self._on_stop = on_stop
        self._listening: list[socket.socket] = []
        self._server: WebServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._app: asyncio.Future[ASGIApp] | None = None
        self.for_node: NodeListener | None = None
        """For the other processes of a node; None: there are none."""
        self._opening: asyncio.Task[None] | None = None
        self.exchanges: Exchanges | None = None
        """Requests that other brokers relay; None: they are not served."""

    @property
    def connection_count(self) -> int:
        return self._counted.open

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds and returns the address (port 0 picks a free one). Raises OSError."""
        sock = self._sockets.bound(host, port)
        self._listening.append(sock)
        name = sock.getsockname()
        return name[0], name[1]

    def share(self, sock: socket.socket) -> None:
        """Accept at this bound socket, too, which other processes may have as well."""
        self._listening.append(sock)

    def start(self) -> None:
        """Starts listening: before this, connections are refused. Raises OSError, and ConfigError
        if the other processes of the node could not ask."""
        if not self._listening:
            raise RuntimeError("bind() must be called before start()")
        if self.for_node is not None:
            self.for_node.bind()
        for sock in self._listening:
            sock.listen(self._limits.backlog)
            self._loop.add_reader(sock, self._on_first_connection)
        if self.for_node is not None:
            self._opening = self._loop.create_task(self.for_node.start())
            self._opening.add_done_callback(self._on_opened)

    def _on_first_connection(self) -> None:
        self._remove_readers()
        self._serving = self._loop.create_task(self._serve())
        self._serving.add_done_callback(self._on_end)

    def _remove_readers(self) -> None:
        for sock in self._listening:
            self._loop.remove_reader(sock)

    async def _serve(self) -> None:
        app = await self.app()
        server = await self._loop.run_in_executor(None, self._load, app)
        self._server = server
        await server.serve(self._listening)

    async def app(self) -> "ASGIApp":
        """The application, made when it is first needed."""
        if self._app is None:
            self._app = self._loop.run_in_executor(None, self._make_app)
        return await asyncio.shield(self._app)

    def _load(self, app: "ASGIApp") -> "WebServer":
        from moldau.edge.http.web_server import WebServer

        return WebServer(app, self._limits, self._counted, self._tls, self._clock)

    def open_connections(self, most: int, wall_ms: int) -> "tuple[int, list[ConnectionShown]]":
        """See `ConnectionSource`."""
        if self._server is None:
            return 0, []
        now, found = self._loop.time(), self._server.traffics
        found.sort(key=lambda traffic: traffic.opened_at)
        return len(found), [one.shown(self._name, now, wall_ms) for one in found[:most]]

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """An internal error ends HTTP only: Kafka clients are still served."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical(
                "internal error: HTTP listener stopped; restart the broker to serve HTTP again",
                exc_info=error,
                extra=events.HTTP_STOPPED(),
            )
        self._close()

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical(
                "internal error: the other processes of the node cannot ask this one; restart it",
                exc_info=error,
                extra=events.HTTP_STOPPED(),
            )

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, let requests finish within the grace period, then abort the rest."""
        serving, server = self._serving, self._server
        if server is not None:
            server.stop()
        self._on_stop()
        relayed = None
        if self.exchanges is not None:
            relayed = self._loop.create_task(self.exchanges.stop(grace_seconds))
        if serving is None:
            self._remove_readers()
        elif server is None:
            serving.cancel()
            await asyncio.wait({serving})
        else:
            _, late = await asyncio.wait({serving}, timeout=grace_seconds)
            if late:
                server.abort()
                await asyncio.wait({serving})
        if relayed is not None:
            await relayed
        self._close()

    def _close(self) -> None:
        while self._listening:
            self._listening.pop().close()
        if self._opening is not None:
            self._opening.cancel()
        if self.for_node is not None:
            self.for_node.close()


def listener_for(
    entrance: "Entrance",
    sources: "MetricSources",
    *,
    loop: AbstractEventLoop,
    peers: RelayPeers,
    first_exchange: int,
    limits: HttpLimits = DEFAULT_LIMITS,
    hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    sockets: Sockets = OS_SOCKETS,
    tls: TlsContexts | None = None,
    clock: Clock | None = None,
    console: Path | None = None,
    node: NodeLinks | None = None,
) -> HttpListener:
    """`hosts`: names of the broker besides localhost and the addresses of its connections.
    `console`: the folder of the web console, if it is not that of the package.
    `first_exchange`: random, for requests that are relayed to peers. `node`: the processes that
    share an address with this one."""
    counted = ConnectionCounts()
    stop_callbacks: list[Callable[[], None]] = []

    def make_app() -> "ASGIApp":
        from moldau.edge.http.app import build_app
        from moldau.edge.http.console_files import FOLDER
        from moldau.edge.http.relay.asking import Relay

        app = build_app(
            entrance,
            sources,
            limits=limits,
            connections=counted,
            relay=Relay(peers, first_exchange),
            hosts=hosts,
            cors_origins=cors_origins,
            console=console or FOLDER,
            node=node,
        )
        stop_callbacks.append(app.stop)
        return app

    def on_stop() -> None:
        for stop in stop_callbacks:
            stop()

    listener = HttpListener(
        loop=loop,
        make_app=make_app,
        limits=limits,
        counted=counted,
        on_stop=on_stop,
        sockets=sockets,
        tls=tls,
        clock=clock,
        name=entrance.listener_name or "http",
    )
    if node is not None:
        listener.for_node = NodeListener(node.path, listener.app)
    listener.exchanges = Exchanges(loop=loop, load=listener.app, queued_bytes=peers.queued_bytes)
    return listener
