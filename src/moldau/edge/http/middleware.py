"""Middleware around every request: limits the memory of bodies and replies, counts and times.

Clients decide how long bodies arrive and how long replies wait to be read. Each has a limit, those
of one client have one, and all together: above it, further requests get a retriable error. Large
replies are sent in pieces, so that what a client has not read is counted here and not in a hidden
buffer.
"""

from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Final, NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moldau.edge.http.client_connections import ConnectionTraffic, traffic_of
from moldau.edge.http.cors import Cors
from moldau.edge.http.hosts import Hosts, with_origin_form
from moldau.edge.http.relay.serving import RELAYED
from moldau.edge.http.responses import respond_refusal
from moldau.edge.http.visits import holder_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.histogram import Histogram

_PIECE_BYTES: Final = 256 * 1024
_SHARES: Final = 4
"""One client gets this part of the memory, so that it takes several to refuse others."""
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
"""Counted by name; all others, which a client may invent, count as one."""


class LimitsMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        *,
        buffered_bytes_max: int,
        hosts: Hosts,
        cors: Cors,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self.stop = on_stop
        """Ends replies that stream indefinitely."""
        self._buffered_bytes_max = buffered_bytes_max
        self._share_bytes_max = buffered_bytes_max // _SHARES
        self._hosts = hosts
        self._cors = cors
        self.buffered_bytes = 0
        """Of bodies being received and replies being sent."""
        self._held: Counter[str] = Counter()
        """Of these, what each client has."""
        self.refused_total = 0
        """Requests rejected because of `buffered_bytes_max`."""
        self.requests: Counter[tuple[str, int]] = Counter()
        """Responses by method and status."""
        self.seconds = Histogram()
        """From the request head to the end of the reply; without streams."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        traffic = traffic_of(scope)
        if traffic is not None:
            traffic.asked(scope)
        asked = with_origin_form(scope)
        # The broker that relays a request has checked it, adds its headers, and counts it.
        is_relayed = RELAYED in scope
        exchange = _Exchange(
            self, asked, receive, send if is_relayed else self._cors.wrap(scope, send), traffic
        )
        app = self._app
        if not is_relayed:
            app = (
                self._hosts.refusal(scope)
                or self._cors.preflight(scope)
                or self._cors.refusal(scope)
                or app
            )
        try:
            await app(asked, exchange.receive, exchange.send)
        finally:
            exchange.release_body()
            if traffic is not None and exchange.status:
                traffic.answered(exchange.status)
            if not is_relayed:
                self._count(scope["method"], exchange, perf_counter() - began)

    def _count(self, method: str, exchange: "_Exchange", seconds: float) -> None:
        if exchange.status:
            named = method if method in _METHODS else "other"
            self.requests[named, exchange.status] += 1
        if not exchange.streams:
            self.seconds.add(seconds)

    def reserve(self, count: int, holder: str) -> None:
        """Raises RefusedError."""
        held = self._held[holder]
        # A single reply may be larger.
        if held and held + count > self._share_bytes_max:
            self._refuse(held, self._share_bytes_max, "of this client ")
        if self.buffered_bytes + count > self._buffered_bytes_max:
            self._refuse(self.buffered_bytes, self._buffered_bytes_max)
        self.buffered_bytes += count
        self._held[holder] += count

    def release(self, count: int, holder: str) -> None:
        self.buffered_bytes -= count
        self._held[holder] -= count
        if not self._held[holder]:
            del self._held[holder]

    def _refuse(self, held: int, limit: int, whose: str = "") -> NoReturn:
        self.refused_total += 1
        raise RefusedError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{held} bytes of bodies and replies {whose}are in memory; the limit is {limit}",
        )


class _Exchange:
    __slots__ = (
        "_body_bytes",
        "_holder",
        "_limits",
        "_receive",
        "_scope",
        "_send",
        "_start",
        "_traffic",
        "status",
        "streams",
    )

    def __init__(
        self,
        limits: LimitsMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        traffic: ConnectionTraffic | None,
    ) -> None:
        self._traffic = traffic
        self._limits = limits
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._holder = ""
        self._body_bytes = 0
        self.status = 0
        self.streams = False

    async def receive(self) -> Message:
        """Raises RefusedError, which the handler that reads the body lets through."""
        message = await self._receive()
        count = len(message.get("body", b""))
        if count:
            # The same for the whole body.
            self._holder = self._holder or holder_of(self._scope)
            self._limits.reserve(count, self._holder)
            self._body_bytes += count
        return message

    def release_body(self) -> None:
        if self._body_bytes:
            self._limits.release(self._body_bytes, self._holder)

    async def send(self, message: Message) -> None:
        if self._traffic is not None:
            self._traffic.sent(message)
        if message["type"] == "http.response.start":
            # Sent once the memory for the body is reserved.
            self._start = message
            return
        body = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) <= _PIECE_BYTES:
            await self._begin(more)
            await self._send(message)
            return
        holder = holder_of(self._scope)
        try:
            self._limits.reserve(len(body), holder)
        except RefusedError as refusal:
            if self._start is None:
                raise
            await self._refuse(refusal)
            return
        try:
            await self._begin(more)
            for at in range(0, len(body), _PIECE_BYTES):
                is_last = at + _PIECE_BYTES >= len(body)
                piece = bytes(body[at : at + _PIECE_BYTES])
                await self._send(
                    {"type": "http.response.body", "body": piece, "more_body": more or not is_last}
                )
        finally:
            self._limits.release(len(body), holder)

    async def _begin(self, streams: bool) -> None:
        start, self._start = self._start, None
        if start is not None:
            self.status = start["status"]
            self.streams = streams
            await self._send(start)

    async def _refuse(self, refusal: RefusedError) -> None:
        self._start = None
        reply = respond_refusal(refusal)
        self.status = reply.status_code
        await self._send(
            {
                "type": "http.response.start",
                "status": reply.status_code,
                "headers": reply.raw_headers,
            }
        )
        await self._send({"type": "http.response.body", "body": bytes(reply.body)})
