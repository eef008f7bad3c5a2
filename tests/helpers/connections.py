"""A listener on loopback whose handler answers as the test says."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable

from moldau.model.clock import Clock
from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.net.tls.contexts import TlsContexts
from moldau.server.clock import SystemClock
from moldau.testing.waiting import wait_seconds_max


class Recorder:
    """A handler that answers as the test says."""

    def __init__(self, answer: Callable[[Connection, bytes], None]) -> None:
        self._answer = answer
        self.frames: list[bytes] = []
        self.closed = 0

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self._answer(connection, bytes(frame))

    def on_closed(self, connection: Connection) -> None:
        self.closed += 1


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def echo(connection: Connection, frame: bytes) -> None:
    connection.reply([framed(frame)])


@contextlib.asynccontextmanager
async def listening(
    handler: Recorder,
    *,
    request_bytes_max: int = 1 << 20,
    inflight_bytes_max: int = 1 << 20,
    inflight_requests_max: int = 100,
    outgoing_bytes_max: int = 1 << 20,
    connections_max: int = 10,
    connections_per_address_max: int = 10,
    idle_seconds_max: float = 3600,
    budget: ByteBudget | None = None,
    clock: Clock | None = None,
    tls: TlsContexts | None = None,
    per_second_per_address_max: float | None = None,
    handshake_seconds_max: float = 10.0,
    on_accepted: Callable[[Connection], None] | None = None,
) -> AsyncIterator[tuple[Listener, int]]:
    listener = Listener(
        loop=asyncio.get_running_loop(),
        handler=handler,
        limits=ListenerLimits(
            connections_max=connections_max,
            connections_per_address_max=connections_per_address_max,
            idle_seconds_max=idle_seconds_max,
            per_second_per_address_max=per_second_per_address_max,
            handshake_seconds_max=handshake_seconds_max,
        ),
        connection_limits=ConnectionLimits(
            request_bytes_max=request_bytes_max,
            inflight_bytes_max=inflight_bytes_max,
            inflight_requests_max=inflight_requests_max,
            outgoing_bytes_max=outgoing_bytes_max,
        ),
        budget=budget or ByteBudget(1 << 24),
        clock=clock or SystemClock(),
        tls=tls,
        on_accepted=on_accepted,
        name="test",
    )
    _, port = listener.bind("127.0.0.1", 0)
    listener.start()
    try:
        yield listener, port
    finally:
        listener.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), wait_seconds_max()))
    return await asyncio.wait_for(reader.readexactly(size), wait_seconds_max())


async def echoed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bodies: list[bytes]
) -> None:
    """Sends frames in pieces that cut them anywhere; each comes back."""

    async def send() -> None:
        stream = b"".join(framed(body) for body in bodies)
        for start in range(0, len(stream), 33_333):
            writer.write(stream[start : start + 33_333])
            await writer.drain()

    sending = asyncio.create_task(send())
    for body in bodies:
        assert await read_frame(reader) == body
    await sending
    writer.close()


async def settled() -> None:
    """Long enough, mostly, for what must not happen to have happened all the same."""
    await asyncio.sleep(0.1)
