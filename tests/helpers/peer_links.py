"""Listeners and links for peers, on real sockets."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvloop
from peer_handshake import call_as_peer, peer_secret

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.handshake import Hello
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.link import PeerLink
from moldau.net.peers.listener import PeerListener
from moldau.net.peers.secret import PeerSecret
from moldau.net.tls.contexts import TlsContexts
from moldau.server.clock import SystemClock
from moldau.testing.waiting import wait_seconds_max

ONE, TWO = BrokerId(1), BrokerId(2)
HELLO = Hello("c", ONE, "dir1", TWO)


class Handler:
    def __init__(self) -> None:
        self.frames: list[tuple[int, FrameKind, bytes]] = []
        self.connected: list[Hello] = []
        self.gone: list[int] = []
        self.error: PeerProtocolError | None = None

    def on_peer_connected(self, hello: Hello) -> None:
        self.connected.append(hello)

    def on_peer_frame(self, sender: BrokerId, kind: FrameKind, body: memoryview) -> None:
        if self.error is not None:
            raise self.error
        self.frames.append((sender, kind, bytes(body)))

    def on_peer_disconnected(self, sender: BrokerId) -> None:
        self.gone.append(sender)


def run(test: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * wait_seconds_max()):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@contextlib.asynccontextmanager
async def listening(
    handler: Handler,
    authorize: Callable[[Hello], str | None] = lambda _: None,
    port: int = 0,
    handshake_seconds_max: float = 3600,
    tls: TlsContexts | None = None,
) -> AsyncIterator[tuple[PeerListener, int]]:
    listener = PeerListener(
        loop=asyncio.get_running_loop(),
        clock=SystemClock(),
        cluster_id="c",
        me=TWO,
        secret=peer_secret(),
        authorize=authorize,
        handler=handler,
        handshake_seconds_max=handshake_seconds_max,
        tls=tls,
    )
    _, port = listener.bind("127.0.0.1", port)
    listener.start()
    try:
        yield listener, port
    finally:
        listener.close()


class Events:
    """What a link reports."""

    def __init__(self) -> None:
        self.up = 0
        self.lost: list[str] = []
        self.room = 0
        self.nobody = 0

    def on_up(self) -> None:
        self.up += 1

    def on_room(self) -> None:
        self.room += 1

    def on_connection_refused(self) -> None:
        self.nobody += 1


@contextlib.asynccontextmanager
async def linked(
    port: int,
    hello: Hello = HELLO,
    limits: LinkLimits | None = None,
    secret: PeerSecret | None = None,
    tls: TlsContexts | None = None,
) -> AsyncIterator[tuple[PeerLink, Events]]:
    events = Events()
    link = PeerLink(
        loop=asyncio.get_running_loop(),
        rng=random.Random(1),
        hello=hello,
        secret=secret or peer_secret(),
        address=("127.0.0.1", port),
        on_connected=events.on_up,
        on_lost=events.lost.append,
        on_room=events.on_room,
        on_connection_refused=events.on_connection_refused,
        limits=limits,
        tls=tls,
    )
    link.start()
    try:
        yield link, events
    finally:
        link.stop()


@contextlib.asynccontextmanager
async def called(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of broker 1 that was accepted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert (await call_as_peer(reader, writer, peer_secret(), HELLO)).reason == ""
        yield reader, writer
    finally:
        writer.close()


async def closed_after(port: int, data: bytes) -> bytes:
    """What a caller is told that sends these bytes, until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
