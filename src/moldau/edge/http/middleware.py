"""Owns what surrounds every request: the bytes it makes the broker hold, its count, its duration.

Bodies that arrive and replies that wait for a slow reader are memory that clients decide about.
Each has a bound of its own, and so has all of it together: above that, who comes next is told to
come again. Large replies leave in pieces, so that what a client does not read stays here, counted,
and not in a buffer that nobody looks at.
"""

from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moldau.edge.http.cors import Cors
from moldau.edge.http.responses import answer_refusal
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.histogram import Histogram

_PIECE_BYTES: Final = 256 * 1024
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
"""Told by name; a client may invent any number of others."""


class LimitsMiddleware:
    """Every request passes here."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        held_bytes_max: int,
        cors: Cors,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self.stop = on_stop
        """Ends the replies that go on for ever."""
        self._held_bytes_max = held_bytes_max
        self._cors = cors
        self.held_bytes = 0
        """Of bodies and replies that are on their way."""
        self.refused_total = 0
        """Requests that found no room."""
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answered, by method and status."""
        self.seconds = Histogram()
        """From a request's head to the end of its reply; without those that stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        passage = _Passage(self, receive, self._cors.wrap(scope, send))
        app = self._cors.preflight(scope) or self._cors.refusal(scope) or self._app
        try:
            await app(scope, passage.receive, passage.send)
        finally:
            self.held_bytes -= passage.held_bytes
            method = scope["method"]
            if passage.status:
                named = method if method in _METHODS else "other"
                self.requests[named, passage.status] += 1
            if not passage.streams:
                self.seconds.add(perf_counter() - began)

    def hold(self, count: int) -> None:
        """Raises RefusedError."""
        if self.held_bytes + count > self._held_bytes_max:
            self.refused_total += 1
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"bodies and replies of {self.held_bytes} bytes are on their way; "
                f"{self._held_bytes_max} may be",
            )
        self.held_bytes += count


class _Passage:
    """One request on its way through."""

    __slots__ = ("_gate", "_receive", "_send", "_start", "held_bytes", "status", "streams")

    def __init__(self, gate: LimitsMiddleware, receive: Receive, send: Send) -> None:
        self._gate = gate
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self.held_bytes = 0
        self.status = 0
        self.streams = False

    async def receive(self) -> Message:
        """Raises RefusedError: whoever reads the body lets it through, and it is answered."""
        message = await self._receive()
        count = len(message.get("body", b""))
        if count:
            self._gate.hold(count)
            self.held_bytes += count
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Not sent before it is known whether there is room for what follows.
            self._start = message
            return
        body = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) <= _PIECE_BYTES:
            await self._begin(more)
            await self._send(message)
            return
        try:
            self._gate.hold(len(body))
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
                    {
                        "type": "http.response.body",
                        "body": piece,
                        "more_body": more or not is_last,
                    }
                )
        finally:
            self._gate.held_bytes -= len(body)

    async def _begin(self, streams: bool) -> None:
        start, self._start = self._start, None
        if start is not None:
            self.status = start["status"]
            self.streams = streams
            await self._send(start)

    async def _refuse(self, refusal: RefusedError) -> None:
        self._start = None
        reply = answer_refusal(refusal)
        self.status = reply.status_code
        await self._send(
            {
                "type": "http.response.start",
                "status": reply.status_code,
                "headers": reply.raw_headers,
            }
        )
        await self._send({"type": "http.response.body", "body": bytes(reply.body)})
