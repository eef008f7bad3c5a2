"""Asks another broker for the reply to a request, and passes it on as it arrives."""

import asyncio
from asyncio import Future
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moldau.api.entrance import Visit
from moldau.api.quotas import charged
from moldau.edge.http.relay.messages import (
    CALL_SECONDS_MAX,
    Opening,
    Part,
    Pull,
    Visitor,
    decode_part,
    encode,
)
from moldau.edge.http.relay.serving import RELAYED
from moldau.edge.http.responses import error_event, read_raw
from moldau.edge.http.visits import check_login, visit_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import NotSentError

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""As large as the largest body that a route takes."""

_HEADERS: Final = frozenset(
    {
        b"accept",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"last-event-id",
        b"traceparent",
        b"tracestate",
    }
)
"""Of the request, that are passed on: never its credentials."""
_ALIVE_CHECK_SECONDS: Final = 1.0
_READS: Final = frozenset({"GET", "HEAD"})
_EVENTS: Final = b"text/event-stream"
_END_OF_EVENT: Final = b"\n\n"
_UNCERTAIN: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})
"""What a change may end with although it was made."""


class Relay:
    """Relays the requests of one broker's clients."""

    def __init__(self, caller: PeerCaller, first_exchange: int) -> None:
        """`first_exchange`: random, so that exchanges of an earlier process are not meant."""
        self._caller = caller
        self._next_exchange = first_exchange
        self._closing: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends streams; their clients reconnect to another broker."""
        self.stopping.set()

    def new_exchange(self) -> int:
        self._next_exchange += 1
        return self._next_exchange

    async def call(self, broker: BrokerId, method: PeerMethod, request: object) -> Part:
        """Raises RefusedError."""
        reply = await self._caller.call(broker, method, encode(request), CALL_SECONDS_MAX)
        try:
            return decode_part(reply)
        except MALFORMED as error:
            raise RefusedError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Invalid reply of broker {broker}: {error}"
            ) from None

    def close(self, broker: BrokerId, exchange: int) -> None:
        """In the background: nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self._close(broker, exchange))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, broker: BrokerId, exchange: int) -> None:
        payload = encode(Pull(exchange=exchange))
        try:
            await self._caller.call(broker, PeerMethod.RELAY_CLOSE, payload, CALL_SECONDS_MAX)
        except RefusedError:
            # It is closed when it has been idle for a while.
            return


def relay_to(request: Request, broker: int) -> Response:
    """The reply of `broker`. Call it before the body is read. Raises RefusedError."""
    visit = visit_of(request)
    cluster = visit.session.cluster
    if RELAYED in request.scope:
        # Each of the two brokers knows something that the other one will know soon.
        raise _unavailable(f"Broker {broker} serves this, and not broker {visit.session.broker_id}")
    if broker not in cluster.brokers:
        raise _unavailable(f"Broker {broker} serves this, but is not in the cluster")
    if broker not in cluster.alive:
        # Its successor is elected soon.
        raise _unavailable(f"Broker {broker} serves this, but is not reachable")
    relay: Relay = request.app.state.relay
    return _RelayedResponse(relay, BrokerId(broker), visit)


def _unavailable(words: str) -> RefusedError:
    return RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, words)


class _RelayedResponse(Response):
    """Pulls the next part when the client has taken the one before."""

    def __init__(self, relay: Relay, broker: BrokerId, visit: Visit) -> None:
        super().__init__()
        self._relay = relay
        self._broker = broker
        self._visit = visit
        self._exchange = relay.new_exchange()
        self._is_read = False
        self._is_begun = False
        self._is_stream = False
        self._is_between_events = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._is_read = scope["method"] in _READS
        body = await read_raw(Request(scope, receive), BODY_BYTES_MAX)
        leaving = asyncio.ensure_future(_disconnected(receive))
        stopping = asyncio.ensure_future(self._relay.stopping.wait())
        is_last = False
        try:
            part = await self._part(self._open(scope, bytes(body)), leaving)
            while part is not None:
                is_last = part.is_last
                await self._pass_on(part, send)
                if is_last:
                    break
                ends = (leaving, stopping) if self._is_stream else (leaving,)
                part = await self._part(self._next(), *ends)
        except RefusedError as error:
            await self._end(error, send)
        finally:
            leaving.cancel()
            stopping.cancel()
            if not is_last:
                self._relay.close(self._broker, self._exchange)

    async def _part(
        self, work: Coroutine[Any, Any, Part], leaving: Future[None], *others: Future[Any]
    ) -> Part | None:
        """The result; None if the client leaves first. Raises RefusedError."""
        asking = asyncio.ensure_future(charged(work))
        try:
            watched: set[Future[Any]] = {asking, leaving, *others}
            while not await _any_done(watched):
                # One that hangs keeps its connection for long after others have taken over.
                if self._broker not in self._visit.session.cluster.alive:
                    raise self._not_responding()
            if leaving.done():
                return None
            if not asking.done():
                raise _unavailable("The broker is stopping")
            return asking.result()
        finally:
            asking.cancel()

    def _not_responding(self) -> RefusedError:
        words = f"Broker {self._broker} serves this, and does not respond"
        if self._is_begun or self._is_read:
            return _unavailable(words)
        # A change may have been made.
        return RefusedError(ErrorCode.NETWORK_EXCEPTION, words)

    async def _open(self, scope: Scope, body: bytes) -> Part:
        session = self._visit.session
        opening = Opening(
            exchange=self._exchange,
            visitor=Visitor(
                principal=session.principal,
                host=session.host,
                access=session.access,
                expires_at_ms=self._visit.expires_at_ms,
            ),
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=[pair for pair in scope["headers"] if pair[0] in _HEADERS],
            body=body,
        )
        try:
            return await self._relay.call(self._broker, PeerMethod.RELAY_OPEN, opening)
        except RefusedError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: RefusedError) -> RefusedError:
        """Of a request that the other broker may not have received."""
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST):
            refusal = _unavailable(
                f"Broker {self._broker} serves this, and its version takes no requests from others"
            )
            refusal.hint = f"upgrade broker {self._broker}, or send the request to it"
            return refusal
        if isinstance(error, NotSentError) or (self._is_read and error.code in _UNCERTAIN):
            return _unavailable(f"Broker {self._broker} serves this: {error}")
        return error

    async def _next(self) -> Part:
        pull = Pull(exchange=self._exchange)
        try:
            return await self._relay.call(self._broker, PeerMethod.RELAY_NEXT, pull)
        except RefusedError as error:
            raise _unavailable(f"Broker {self._broker} serves this: {error}") from None

    async def _pass_on(self, part: Part, send: Send) -> None:
        if self._is_stream:
            check_login(self._visit)
        if part.status:
            self._is_begun = True
            self._is_stream = dict(part.headers).get(b"content-type", b"").startswith(_EVENTS)
            await send(
                {
                    "type": "http.response.start",
                    "status": part.status,
                    "headers": part.headers,
                }
            )
        if part.is_cut:
            raise _unavailable(f"Broker {self._broker} ended its reply too early")
        if part.status or part.body or part.is_last:
            if part.body:
                self._is_between_events = part.body.endswith(_END_OF_EVENT)
            message = {"body": part.body, "more_body": not part.is_last}
            await send({"type": "http.response.body", **message})

    async def _end(self, error: RefusedError, send: Send) -> None:
        """No further part can be had. Raises the error if the reply has not begun."""
        if not self._is_begun:
            raise error
        if self._is_stream and self._is_between_events:
            event = error_event(error)
            await send({"type": "http.response.body", "body": event, "more_body": False})
        # Otherwise the reply stays incomplete, so that the web server closes the connection.


async def _any_done(watched: set[Future[Any]]) -> bool:
    done, _ = await asyncio.wait(
        watched, timeout=_ALIVE_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    return bool(done)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
