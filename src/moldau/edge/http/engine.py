"""Owns how uvicorn runs inside a broker: no signals of its own, and bounds on every connection.

uvicorn bounds idle time between requests, but waits for ever for a first request, for the rest of
one that was begun, and for a client that reads no reply. Here each of these ends by a timer, and
connections above the cap are closed before they are read.
"""

import asyncio
import contextlib
import logging
from asyncio import TimerHandle, Transport
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from moldau.edge.http.server import HttpLimits

log = logging.getLogger(__name__)

_DATE_SECONDS = 1.0
_WARN_SECONDS = 10.0


class BoundedProtocol(H11Protocol):
    """One connection, with an end to every wait for its client."""

    limits: HttpLimits
    """Set by a subclass: uvicorn makes the instances and passes nothing of ours."""

    _request_timer: TimerHandle | None = None
    _reply_timer: TimerHandle | None = None
    _warned_at = float("-inf")

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            self._warn_of_cap()
            transport.abort()
        else:
            self._await_request()

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
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        # The head is still coming, or the body; or a reply went out before the body was in.
        if cycle is None or cycle.response_complete or cycle.more_body:
            self._await_request()
        else:
            self._forget_request_timer()

    def _await_request(self) -> None:
        """Once per request: one that trickles in gets no more time by doing so."""
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(
                self.limits.request_seconds_max, self.transport.abort
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reply()

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


class Engine(uvicorn.Server):
    """A web server that shares the broker's loop, and ends when the broker says so."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        class Protocol(BoundedProtocol):
            pass

        Protocol.limits = limits
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
