"""Owns how uvicorn runs inside a broker: no signals of its own, and bounds on every connection.

uvicorn bounds idle time between requests, but waits for ever for a first request, for the rest of
one that was begun, and for a client that reads no reply. Here each of these ends by a timer, and
connections above the cap are closed before they are read.
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

from moldau.edge.http.listener import ConnectionCounts, HttpLimits
from moldau.edge.http.responses import RETRY_SECONDS, answer_error
from moldau.model.errors import ErrorCode

log = logging.getLogger(__name__)

_DATE_SECONDS = 1.0
_WARN_SECONDS = 10.0


def _whole_reply(reply: Response) -> bytes:
    """As it goes over the wire, for those who never get as far as the application."""
    head = b"".join(b"%b: %b\r\n" % pair for pair in reply.raw_headers)
    phrase = http.HTTPStatus(reply.status_code).phrase.encode()
    status = b"HTTP/1.1 %d %b\r\n" % (reply.status_code, phrase)
    return status + head + b"connection: close\r\n\r\n" + bytes(reply.body)


_NO_HTTP: Final = _whole_reply(
    answer_error(
        400,
        ErrorCode.INVALID_REQUEST,
        "What was sent is no request of HTTP/1.1 or HTTP/1.0",
        hint="no TLS and no HTTP/2 are spoken here, and the head must fit in 64 KiB",
    )
)
_NO_ROOM: Final = _whole_reply(
    answer_error(
        503,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "As many connections are open as may be",
        hint="close those that are not used, or try again after Retry-After",
        headers={"retry-after": str(RETRY_SECONDS)},
    )
)


class BoundedProtocol(H11Protocol):
    """One connection, with an end to every wait for its client."""

    limits: HttpLimits
    """Set by a subclass: uvicorn makes the instances and passes nothing of ours."""
    counted: ConnectionCounts

    _request_timer: TimerHandle | None = None
    _reply_timer: TimerHandle | None = None
    _warned_at = float("-inf")

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            self.counted.refused_total += 1
            self._warn_of_cap()
            transport.write(_NO_ROOM)
            transport.close()
        else:
            self.counted.accepted_total += 1
            self._give_up_on_the_silent(transport)
            self._await_request()
        self.counted.open = len(self.connections)

    def _give_up_on_the_silent(self, transport: Transport) -> None:
        """A client whose machine died reads nothing and says nothing. Who follows a partition gets
        so little that no buffer fills, and would keep its place for a quarter of an hour."""
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self.limits.reply_stall_seconds_max * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, milliseconds))

    def _warn_of_cap(self) -> None:
        """At most one line every few seconds: a storm must not fill the disk."""
        kind, now = type(self), self.loop.time()
        if now - kind._warned_at >= _WARN_SECONDS:
            kind._warned_at = now
            log.warning(
                "an HTTP connection was refused: %d are open (the limit)",
                self.limits.connections_max,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request_timer()
        self._forget_reply_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.counted.open = len(self.connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        # The head is still coming, or the body; or a reply went out before the body was in.
        if cycle is None or cycle.response_complete or cycle.more_body:
            self._await_request()
        else:
            self._forget_request_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = self.cycle
        if not cycle.response_complete and cycle.more_body:
            # It was sent ahead, in part, and the rest may never come.
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP: in the same form as every other error."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_NO_HTTP)
        # Else a reply is being written, and words in its middle would be taken for part of it.
        self.transport.close()

    def _await_request(self) -> None:
        """Once per request: one that trickles in gets no more time by doing so."""
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(
                self.limits.request_seconds_max, self.transport.abort
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reply()

    def resume_writing(self) -> None:
        super().resume_writing()
        # It reads. The next piece fills the buffer anew, which must not look like standing still.
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
        """Slow is allowed, standing still is not."""
        self._reply_timer = None
        left = self.transport.get_write_buffer_size()
        if left >= left_before > 0:
            self.transport.abort()
        elif left:
            self._watch_reply()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            # It closes when the last reply is through, which may be never.
            self._watch_reply()

    def shutdown(self) -> None:
        """Finish the request that is being answered; nobody waits for one that is not here yet."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _forget_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


class WebServer(uvicorn.Server):
    """A web server that shares the broker's loop, and ends when the broker says so."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, counted: ConnectionCounts) -> None:
        class Protocol(BoundedProtocol):
            pass

        Protocol.limits = limits
        Protocol.counted = counted
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
                # The rest is what clients did wrong, its own start and stop, requests that a stop
                # cut off, and defects, which the application has logged before.
                log_level="critical",
            )
        )
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's."""
        yield

    async def main_loop(self) -> None:
        """Keep the date of the replies, without waking ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    def cut(self) -> None:
        """End what the grace did not suffice for."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()
