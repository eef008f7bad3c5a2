"""The peer side of a relay over an application of a test, as another broker sees it."""

import asyncio
from typing import Any

from moldau.api.guard import ListenerAccess
from moldau.edge.http.relay.messages import (
    Opening,
    Part,
    Pull,
    Visitor,
    decode_part,
    encode,
)
from moldau.edge.http.relay.serving import Exchanges
from moldau.model.ids import BrokerId
from moldau.security.principal import user

PEER = BrokerId(1)
READ_ONLY = ListenerAccess(name="door", read_only=True)


def opening(exchange: int = 1, **fields: Any) -> Opening:
    given: dict[str, Any] = {
        "exchange": exchange,
        "visitor": Visitor(
            principal=user("alice"), host="10.0.0.9", access=READ_ONLY, expires_at_ms=7
        ),
        "method": "GET",
        "path": "/a b",
        "query": b"after=x%2F1",
        "headers": [(b"accept", b"x")],
        "body": b"",
    }
    return Opening(**{**given, **fields})


class Serving:
    """Exchanges over one application, and the link that their parts go through."""

    def __init__(self, app: Any) -> None:
        self.queued: int | None = 0
        self._app = app
        self.exchanges = Exchanges(
            loop=asyncio.get_running_loop(), load=self._load, queued_bytes=lambda _: self.queued
        )

    async def _load(self) -> Any:
        await asyncio.sleep(0)
        return self._app

    async def open(self, exchange: int = 1, peer: int = PEER, **fields: Any) -> Part:
        payload = encode(opening(exchange, **fields))
        return decode_part(await self.exchanges.on_open(BrokerId(peer), payload))

    async def next(self, exchange: int = 1, peer: int = PEER) -> Part:
        payload = encode(Pull(exchange=exchange))
        return decode_part(await self.exchanges.on_next(BrokerId(peer), payload))

    async def close(self, exchange: int = 1, peer: int = PEER) -> None:
        payload = encode(Pull(exchange=exchange))
        assert await self.exchanges.on_close(BrokerId(peer), payload) == b""


async def start(send: Any, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def body(send: Any, content: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": more})


async def left(receive: Any) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue


class Stream:
    """An application that sends what a test puts there, until the client leaves."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self._headers = headers
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.has_ended = False

    def put(self, content: bytes) -> None:
        self._queue.put_nowait(content)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending = asyncio.ensure_future(self._send(send))
        try:
            await left(receive)
        finally:
            sending.cancel()
            self.has_ended = True

    async def _send(self, send: Any) -> None:
        await start(send, *self._headers)
        await body(send, b"", more=True)
        while True:
            await body(send, await self._queue.get(), more=True)
