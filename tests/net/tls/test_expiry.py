"""Certificates of clients that expire, or whose authority is removed, while TLS sessions last.

And those whose expiry cannot be read.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
from connections import Recorder, echo, framed, listening, read_frame
from secure_front import identity
from tls_world import TlsWorld

from moldau.model.ids import TimestampMs
from moldau.net import listener as listener_module
from moldau.server.clock import SystemClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

TWO_DAYS_MS = 2 * 24 * 3600 * 1000


class JumpingClock(SystemClock):
    ahead_ms = 0

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(super().wall_ms() + self.ahead_ms)


@pytest.fixture
def world(tmp_path) -> TlsWorld:
    return TlsWorld(tmp_path)


def old_client(world: TlsWorld) -> ssl.SSLContext:
    """With TLS 1.2, whose sessions can be resumed by their id."""
    context = world.client(world.client_files("alice"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def visit(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool, bytes]:
    """The session, whether it was resumed, and what came back."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=wait_seconds_max()) as raw,
        context.wrap_socket(raw, server_hostname="localhost", session=session) as sock,
    ):
        sock.sendall(framed(b"x"))
        return sock.session, bool(sock.session_reused), sock.recv(100)


@contextlib.asynccontextmanager
async def expired(
    world: TlsWorld,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that was served until its certificate expired."""
    clock = JumpingClock()
    async with listening(Recorder(echo), tls=world.contexts(mtls=True), clock=clock) as (_, port):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=world.client(world.client_files())
        )
        writer.write(framed(b"x"))
        assert await read_frame(reader) == b"x"
        clock.ahead_ms = TWO_DAYS_MS
        yield reader, writer
        writer.close()


async def test_an_open_connection_ends_with_its_certificate(world, caplog) -> None:
    async with expired(world) as (reader, writer):
        writer.write(framed(b"y"))
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
    assert "the client's certificate has expired" in caplog.text


async def test_one_that_only_waits_ends_too(world, monkeypatch) -> None:
    monkeypatch.setattr(listener_module, "_REAP_SECONDS", 0.05)
    async with expired(world) as (reader, _):
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""


async def test_a_resumed_session_does_not_outlive_the_certificate(world) -> None:
    clock = JumpingClock()
    context = old_client(world)
    handler = Recorder(echo)
    async with listening(handler, tls=world.contexts(mtls=True), clock=clock) as (_, port):
        session, _, answer = await asyncio.to_thread(visit, port, context)
        assert answer == framed(b"x")
        _, is_resumed, answer = await asyncio.to_thread(visit, port, context, session)
        assert is_resumed
        assert answer == framed(b"x")
        clock.ahead_ms = TWO_DAYS_MS
        try:
            _, _, answer = await asyncio.to_thread(visit, port, context, session)
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b""
        assert handler.frames == [b"x", b"x"]


async def test_a_session_is_not_resumed_after_its_authority_was_removed(world) -> None:
    tls = world.contexts(mtls=True)
    context = old_client(world)
    handler = Recorder(echo)
    async with listening(handler, tls=tls) as (_, port):
        session, _, answer = await asyncio.to_thread(visit, port, context)
        assert answer == framed(b"x")
        # The broker's own certificate stays: only clients of the old authority are not accepted.
        world.ca_file.write_text(identity("another authority").pem)
        assert tls.reload()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(visit, port, context, session)
        assert handler.frames == [b"x"]


def reply_to(context: ssl.SSLContext, port: int) -> bytes:
    """What a client gets; nothing if the broker ends its connection."""
    try:
        return visit(port, context)[2]
    except ConnectionError:
        return b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_cannot_be_parsed_is_refused(
    world, caplog, version
) -> None:
    handler = Recorder(echo)
    context = world.client(world.odd_client_files())
    context.minimum_version = context.maximum_version = version
    async with listening(handler, tls=world.contexts(mtls=True)) as (listener, port):
        assert await asyncio.to_thread(reply_to, context, port) == b""
        await until(lambda: listener.connection_count == 0, "no connection")
        assert len(listener.handshakes) == 0
    assert handler.frames == []
    assert "the client's certificate is not valid" in caplog.text
