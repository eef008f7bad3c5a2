"""Runs uvicorn inside the broker: without its signal handlers, and with limits on connections.

uvicorn limits the idle time between requests, but waits indefinitely for the first request, for the
rest of a request, and for a client that reads no reply. Here each of these has a timeout, and
above the limit of connections one that waits for its client is closed.
"""

import asyncio
import contextlib
import http
import logging
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from moldau.edge.http.client_connections import CONNECTION, ConnectionTraffic
from moldau.edge.http.limits import ConnectionCounts, HttpLimits
from moldau.edge.http.places import Places
from moldau.edge.http.responses import RETRY_SECONDS, respond_error
from moldau.edge.http.tls_front import TlsFront
from moldau.edge.http.visits import CERTIFICATE
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode
from moldau.net.failure_log import FailureLog
from moldau.net.tls.contexts import TlsContexts, peer_certificate

log = logging.getLogger(__name__)

_DATE_SECONDS = 1.0
_WARN_SECONDS = 10.0


def _whole_reply(reply: Response) -> bytes:
    """The bytes on the wire, for connections that never reach the application."""
    head = b"".join(b"%b: %b\r\n" % pair for pair in reply.raw_headers)
    phrase = http.HTTPStatus(reply.status_code).phrase.encode()
    status = b"HTTP/1.1 %d %b\r\n" % (reply.status_code, phrase)
    return status + head + b"connection: close\r\n\r\n" + bytes(reply.body)


_NOT_HTTP: Final = _whole_reply(
    respond_error(
        400,
        ErrorCode.INVALID_REQUEST,
        "Not a valid HTTP/1.1 or HTTP/1.0 request",
        hint="this listener uses no TLS, and no HTTP/2; a request head may have up to 64 KiB",
    )
)
_NOT_TLS: Final = _whole_reply(
    respond_error(
        400,
        ErrorCode.INVALID_REQUEST,
        "This listener uses TLS, and the request came without",
        hint="use https:// in place of http://",
    )
)
_TOO_MANY_CONNECTIONS: Final = _whole_reply(
    respond_error(
        503,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "Connection limit reached",
        hint="close unused connections, or retry after Retry-After",
        headers={"retry-after": str(RETRY_SECONDS)},
    )
)


class BoundedProtocol(H11Protocol):
    """One connection; every wait for its client has a timeout."""

    limits: HttpLimits
    """Set on a subclass: uvicorn creates the instances."""
    counted: ConnectionCounts
    places: "Places[BoundedProtocol]"
    clock: Clock | None

    traffic = ConnectionTraffic("", 0.0)
    """Replaced when the connection is made."""
    _host = ""
    _expires_ms = float("inf")
    _request_timer: TimerHandle | None = None
    _reply_timer: TimerHandle | None = None
    _warned_at = float("-inf")

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._keep_certificate(transport)
        except ValueError:
            # One that cannot be parsed, and so never expires.
            transport.abort()
            return
        self._host = self.client[0] if self.client else ""
        address = f"{self.client[0]}:{self.client[1]}" if self.client else ""
        self.traffic = ConnectionTraffic(address, self.loop.time())
        self.app_state = {**self.app_state, CONNECTION: self.traffic}
        loser = self.places.take(self, self._host)
        if loser is not None:
            self.counted.refused_total += 1
            loser._log_limit_reached()
        if loser is self:
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
        else:
            if loser is not None:
                loser.transport.abort()
            self.counted.accepted_total += 1
            self._set_tcp_timeout(transport)
            self._await_request()
        self.counted.open = len(self.places)

    def _keep_certificate(self, transport: Transport) -> None:
        """The certificate of the client, for all requests of the connection."""
        encrypted = transport.get_extra_info("ssl_object")
        found = None if encrypted is None else peer_certificate(encrypted)
        if found is not None:
            self.app_state = {**self.app_state, CERTIFICATE: found}
            self._expires_ms = found.expires_at * 1000

    def _set_tcp_timeout(self, transport: Transport) -> None:
        """Detects clients whose machine died. A tail of a quiet partition sends so little that no
        buffer fills, and its connection would stay open for a quarter of an hour."""
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self.limits.reply_stall_seconds_max * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, milliseconds))

    def _log_limit_reached(self) -> None:
        """At most one line every few seconds: a connection storm must not fill the disk."""
        kind, now, limits = type(self), self.loop.time(), self.limits
        if now - kind._warned_at >= _WARN_SECONDS:
            kind._warned_at = now
            log.warning(
                "HTTP connection from %s closed: limit of %d connections, or %d of one address, "
                "reached",
                self._host,
                limits.connections_max,
                limits.connections_per_address_max,
                extra=events.CONNECTION_REJECTED(address=self._host),
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request_timer()
        self._forget_reply_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.places.leave(self)
        self.counted.open = len(self.places)

    def data_received(self, data: bytes) -> None:
        if self.clock is not None and self.clock.wall_ms() >= self._expires_ms:
            # Its certificate: the client is no longer who it was. A session of TLS 1.2 that is
            # resumed does not verify it again.
            self.transport.close()
            return
        self.traffic.active_at = self.loop.time()
        self.traffic.bytes_in += len(data)
        super().data_received(data)
        # Head or body is incomplete, or the reply was sent before the body was complete.
        if self._settle_place():
            self._await_request()
        else:
            self._forget_request_timer()

    def on_response_complete(self) -> None:
        self.traffic.active_at = self.loop.time()
        super().on_response_complete()
        if self._settle_place() and not self.cycle.response_complete:
            # The next request has arrived in part, and its rest may never come.
            self._await_request()

    def _settle_place(self) -> bool:
        """Whether the client has to send something; who has not may lose its place."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self.places.answer(self)
            return False
        if not self.transport.is_closing():
            self.places.wait(self, self._host)
        return True

    def send_400_response(self, msg: str) -> None:
        """Not HTTP: answered in the same form as every other error."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_NOT_HTTP)
        # Otherwise a reply is being written, and this would look like a part of it.
        self.transport.close()

    def _await_request(self) -> None:
        """Started once per request: sending slowly does not extend the deadline."""
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(
                self.limits.request_seconds_max, self.transport.abort
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        # The client reads. The next piece fills the buffer again, which is not a stall.
        self._forget_reply_timer()

    def _forget_reply_timer(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None

    def _watch_reply(self) -> None:
        if self._reply_timer is None:
            self._reply_timer = self.loop.call_later(
                self.limits.reply_stall_seconds_max,
                self._check_reply,
                self.transport.get_write_buffer_size(),
            )

    def _check_reply(self, left_before: int) -> None:
        """Aborts if the client has read nothing since the last check; slow readers are fine."""
        self._reply_timer = None
        left = self.transport.get_write_buffer_size()
        if left >= left_before > 0:
            self.transport.abort()
        elif left:
            self._watch_reply()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            # It closes when the last reply is sent, which may never happen.
            self._watch_reply()

    def shutdown(self) -> None:
        """Finish the request that is being answered, and accept no further one."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _forget_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


class WebServer(uvicorn.Server):
    """A web server that shares the broker's event loop and is stopped by the broker."""

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        counted: ConnectionCounts,
        tls: TlsContexts | None = None,
        clock: Clock | None = None,
    ) -> None:
        """With `tls`, which needs a clock, connections are encrypted."""

        class Protocol(BoundedProtocol):
            pass

        Protocol.limits = limits
        Protocol.counted = counted
        Protocol.clock = clock
        Protocol.places = Places(limits.connections_max, limits.connections_per_address_max)
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=Protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                workers=1,
                backlog=limits.backlog,
                timeout_keep_alive=limits.keep_alive_seconds_max,
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                # Below: client errors, its own start and stop, requests aborted by a stop, and
                # internal errors, which the application has logged already.
                log_level="critical",
            )
        )
        self._stopping = asyncio.Event()
        self._limits = limits
        self._counted = counted
        self._tls = tls
        self._clock = clock
        self._failures = None if clock is None else FailureLog(clock, "http")
        self._fronts: list[TlsFront] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or self._failures is None or self._clock is None:
            await super().startup(sockets)
            return
        self.servers = []
        for sock in sockets or ():
            front = TlsFront(
                sock,
                self._tls,
                self._new_protocol,
                limits=self._limits,
                counted=self._counted,
                failures=self._failures,
                clock=self._clock,
                plain_reply=_NOT_TLS,
            )
            front.start()
            self._fronts.append(front)
        self.started = True

    def _new_protocol(self) -> asyncio.Protocol:
        kind = self.config.http_protocol_class
        made: asyncio.Protocol = kind(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for front in self._fronts:
            front.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The broker handles signals."""
        yield

    async def main_loop(self) -> None:
        """Updates the Date header once a second; uvicorn wakes up ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._stopping.wait()

    @property
    def traffics(self) -> list[ConnectionTraffic]:
        """Of all open connections."""
        return [
            one.traffic for one in self.server_state.connections if isinstance(one, BoundedProtocol)
        ]

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    def abort(self) -> None:
        """Abort the requests that did not finish within the grace period."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()
