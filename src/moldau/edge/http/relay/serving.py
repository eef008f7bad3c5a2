"""Serves requests that other brokers relay, and keeps each reply until it is pulled.

This module is loaded with the broker, so it must import no web framework: see `listener`.
"""

import asyncio
import contextlib
import logging
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from moldau.edge.http.relay.messages import (
    IDLE_SECONDS_MAX,
    PART_BYTES_MAX,
    ROOM_SECONDS,
    WAIT_SECONDS,
    Opening,
    Part,
    decode_opening,
    decode_pull,
    encode,
)
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import RequestHandler

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

log = logging.getLogger(__name__)

EXCHANGES_PER_PEER_MAX: Final = 128
EXCHANGES_MAX: Final = 256
RELAYED: Final = "moldau.relayed"
"""In the scope of a relayed request: its `Visitor`."""

_QUEUED_BYTES_MAX: Final = LinkLimits().queue_bytes_max
"""In the link to the peer, before a part is added; the same as for what replicas send."""
_ROOM_CHECK_SECONDS: Final = 0.01
_IDLE_CHECK_SECONDS: Final = 5.0


class RelayPeers(PeerCaller, Protocol):
    """The links to other brokers."""

    def queued_bytes(self, peer: BrokerId) -> int | None: ...


_Key = tuple[BrokerId, int]


class Exchanges:
    """Handles the peer methods of relays."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        load: Callable[[], Awaitable["ASGIApp"]],
        queued_bytes: Callable[[BrokerId], int | None],
    ) -> None:
        """`load` returns the application. `queued_bytes`: in the link to a peer; None: there is no
        connection."""
        self._loop = loop
        self._load = load
        self._queued_bytes = queued_bytes
        self._open: dict[_Key, _Exchange] = {}
        self._by_peer: Counter[BrokerId] = Counter()
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def methods(self) -> Mapping[PeerMethod, RequestHandler]:
        """What peers call."""
        return {
            PeerMethod.RELAY_OPEN: self.on_open,
            PeerMethod.RELAY_NEXT: self.on_next,
            PeerMethod.RELAY_CLOSE: self.on_close,
        }

    async def on_open(self, sender: BrokerId, payload: bytes) -> bytes:
        """Returns the first part. Raises RefusedError."""
        opening = decode_request(decode_opening, payload)
        key = (sender, opening.exchange)
        self._check_room(key)
        exchange = _Exchange(
            self._loop, self._load, opening, lambda: self._queued_bytes(sender) is not None
        )
        self._open[key] = exchange
        self._by_peer[sender] += 1
        exchange.serving.add_done_callback(lambda _: self._forget(key))
        return await self._part(sender, exchange)

    def _check_room(self, key: _Key) -> None:
        if self._is_stopping:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")
        if key in self._open:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"exchange {key[1]} is open already")
        for count, most in (
            (self._by_peer[key[0]], EXCHANGES_PER_PEER_MAX),
            (len(self._open), EXCHANGES_MAX),
        ):
            if count >= most:
                raise RefusedError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"The limit of {most} requests that other brokers relay is reached",
                )

    async def on_next(self, sender: BrokerId, payload: bytes) -> bytes:
        """Returns the next part, or an empty one after a while. Raises RefusedError."""
        pull = decode_request(decode_pull, payload)
        exchange = self._open.get((sender, pull.exchange))
        if exchange is None or exchange.is_closed:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The relayed request has ended")
        return await self._part(sender, exchange)

    async def on_close(self, sender: BrokerId, payload: bytes) -> bytes:
        """The client has left."""
        pull = decode_request(decode_pull, payload)
        exchange = self._open.get((sender, pull.exchange))
        if exchange is not None:
            exchange.close()
        return b""

    async def _part(self, sender: BrokerId, exchange: "_Exchange") -> bytes:
        with exchange.asked():
            await exchange.wait_for_news(WAIT_SECONDS)
            await self._room(sender)
            # The reply enters the queue of the link before anything else runs.
            return encode(exchange.take())

    async def _room(self, peer: BrokerId) -> None:
        """Large replies must not fill the link: the queue drops what exceeds its limit."""
        deadline = self._loop.time() + ROOM_SECONDS
        while (self._queued_bytes(peer) or 0) > _QUEUED_BYTES_MAX:
            if self._loop.time() >= deadline:
                raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "The link between brokers is full")
            await asyncio.sleep(_ROOM_CHECK_SECONDS)

    def _forget(self, key: _Key) -> None:
        del self._open[key]
        self._by_peer[key[0]] -= 1
        if not self._by_peer[key[0]]:
            del self._by_peer[key[0]]

    async def stop(self, grace_seconds: float) -> None:
        """Call it when streams end: the rest of replies is pulled within the grace period."""
        self._is_stopping = True
        tasks = {exchange.serving for exchange in self._open.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Exchange:
    """One request that is being served: the connection of its client, as the application sees it.

    Its task ends when the application has returned, and the reply is pulled or not wanted.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        load: Callable[[], Awaitable["ASGIApp"]],
        opening: Opening,
        is_connected: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._is_connected = is_connected
        self._body: bytes | None = opening.body
        self._head: Part | None = None
        """Status and headers, until they are pulled."""
        self._pending = bytearray()
        """What is sent, and not pulled yet."""
        self._is_complete = False
        self._is_over = False
        """The application has returned."""
        self._news = asyncio.Event()
        """There is something to pull."""
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        """The client has left, or has received everything."""
        self._idle_since: float | None = loop.time()
        """None: it is being asked for a part."""
        self._idle_check = loop.call_later(_IDLE_CHECK_SECONDS, self._close_if_idle)
        self.serving = loop.create_task(self._serve(load, opening))
        self.serving.add_done_callback(lambda _: self._idle_check.cancel())

    # ---- for the broker that relays

    @property
    def is_closed(self) -> bool:
        return self._gone.is_set()

    def close(self) -> None:
        """The client has left: the application finds out as with a connection of its own."""
        self._gone.set()
        self._room.set()
        self._news.set()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """While it is being asked for a part."""
        if self._idle_since is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Two parts were asked for at once")
        self._idle_since = None
        try:
            yield
        finally:
            self._idle_since = self._loop.time()

    async def wait_for_news(self, seconds_max: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._news.wait()

    def take(self) -> Part:
        head, self._head = self._head or Part(), None
        body = bytes(self._pending[:PART_BYTES_MAX])
        del self._pending[:PART_BYTES_MAX]
        is_end = (self._is_complete or self._is_over) and not self._pending
        if not self._pending:
            self._room.set()
            if not is_end:
                self._news.clear()
        if is_end:
            self.close()
        return Part(
            status=head.status,
            headers=head.headers,
            body=body,
            is_last=is_end,
            is_cut=is_end and not self._is_complete,
        )

    def _close_if_idle(self) -> None:
        if self._idle_since is not None:
            idle_seconds = self._loop.time() - self._idle_since
            if idle_seconds >= IDLE_SECONDS_MAX or not self._is_connected():
                self.close()
        self._idle_check = self._loop.call_later(_IDLE_CHECK_SECONDS, self._close_if_idle)

    # ---- for the application

    async def _serve(self, load: Callable[[], Awaitable["ASGIApp"]], opening: Opening) -> None:
        try:
            app = await load()
            await app(scope_of(opening), self._receive, self._send)
        except Exception as error:
            if not self._is_complete:
                # Otherwise the application has logged it, and responded.
                log.error(
                    "internal error while handling a relayed request",
                    exc_info=error,
                    extra=events.INTERNAL_ERROR(),
                )
        finally:
            self._is_over = True
            self._news.set()
        await self._gone.wait()

    async def _receive(self) -> "Message":
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: "Message") -> None:
        """Returns when there is room for more. What a client that left would get is dropped."""
        if self.is_closed:
            return
        if message["type"] == "http.response.start":
            self._head = Part(status=message["status"], headers=list(message["headers"]))
            return
        self._pending += message.get("body", b"")
        self._is_complete = not message.get("more_body", False)
        self._news.set()
        while len(self._pending) >= PART_BYTES_MAX and not self.is_closed:
            self._room.clear()
            await self._room.wait()


def scope_of(opening: Opening) -> "Scope":
    return {
        "type": "http",
        # Of this version, streams watch for the end of the connection.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": opening.method,
        "scheme": "http",
        "path": opening.path,
        "root_path": "",
        "query_string": opening.query,
        "headers": opening.headers,
        "client": (opening.visitor.host, 0),
        "server": None,
        "state": {},
        RELAYED: opening.visitor,
    }
