"""Muted connections: nothing more is read, replies are sent. Real sockets on loopback."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from connections import Recorder, echo, framed, listening, read_frame
from tls_world import TlsWorld

from moldau.net.buffers import ByteBudget
from moldau.net.connection import Connection
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

LONG = 3600.0
SHORT = 0.05


def mutes(seconds: float) -> Callable[[Connection, bytes], None]:
    """Answers, and mutes the connection after a frame that says so."""

    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"mute":
            connection.mute(seconds)
        echo(connection, frame)

    return answer


async def test_a_muted_client_is_answered_and_its_next_requests_wait() -> None:
    handler = Recorder(mutes(LONG))
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + framed(b"same packet"))
        assert await read_frame(reader) == b"mute"
        writer.write(framed(b"later"))
        await writer.drain()
        for number in range(10):
            # Others are served meanwhile.
            other_writer.write(framed(b"%d" % number))
            assert await read_frame(other_reader) == b"%d" % number
        assert b"same packet" not in handler.frames
        assert b"later" not in handler.frames
        writer.close()
        other_writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_after_the_mute_all_requests_are_handled_in_order(tls: bool, tmp_path: Path) -> None:
    world = TlsWorld(tmp_path) if tls else None
    handler = Recorder(mutes(SHORT))
    async with listening(handler, tls=world.contexts() if world else None) as (_, port):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            port,
            ssl=world.client() if world else None,
            server_hostname="localhost" if world else None,
        )
        bodies = [b"mute", b"a", os.urandom(300_000), b"mute", b"b", b"mute", b"mute", b"c"]
        writer.write(b"".join(framed(body) for body in bodies))
        assert [await read_frame(reader) for _ in bodies] == bodies
        writer.close()


async def test_a_second_mute_does_not_shorten_the_first() -> None:
    def answer(connection: Connection, frame: bytes) -> None:
        connection.mute(LONG)
        connection.mute(SHORT / 10)
        echo(connection, frame)

    handler = Recorder(answer)
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"first") + framed(b"second"))
        assert await read_frame(reader) == b"first"
        await asyncio.sleep(SHORT)
        assert handler.frames == [b"first"]
        writer.close()


async def test_a_muted_connection_is_not_closed_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    clock = ManualClock()
    handler = Recorder(mutes(LONG))
    async with listening(handler, idle_seconds_max=60, clock=clock) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + struct.pack(">i", 100) + b"half of a request")
        assert await read_frame(reader) == b"mute"
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        idle_writer.write(framed(b"hello"))
        assert await read_frame(idle_reader) == b"hello"
        clock.steady += 100
        assert await asyncio.wait_for(idle_reader.read(), wait_seconds_max()) == b""
        assert listener.connection_count == 1
        writer.close()
        idle_writer.close()


async def test_a_client_that_leaves_while_it_is_muted_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    budget = ByteBudget(1 << 24)
    handler = Recorder(mutes(LONG))
    async with listening(handler, budget=budget) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + framed(b"unread"))
        assert await read_frame(reader) == b"mute"
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: not listener.connection_count, "the connection is closed")
        assert (handler.closed, budget.used) == (1, 0)


async def test_a_drain_does_not_wait_for_the_end_of_a_mute() -> None:
    handler = Recorder(mutes(LONG))
    async with listening(handler) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + framed(b"unread"))
        assert await read_frame(reader) == b"mute"
        listener.drain()
        assert listener.connection_count == 0
        assert handler.frames == [b"mute"]
        writer.close()


async def test_a_muted_connection_reserves_no_memory_for_what_may_come() -> None:
    budget = ByteBudget(1 << 24)
    handler = Recorder(mutes(LONG))
    async with listening(handler, request_bytes_max=1 << 23, budget=budget) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + struct.pack(">i", 1 << 23) + b"only the start")
        assert await read_frame(reader) == b"mute"
        # A page of the pool, for what has arrived.
        assert budget.used <= 1 << 16
        writer.close()


async def test_a_large_request_that_was_begun_before_the_mute_arrives_whole() -> None:
    handler = Recorder(mutes(SHORT))
    body = os.urandom(3_000_000)
    async with listening(handler, request_bytes_max=1 << 23) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + framed(body) + framed(b"end"))
        assert await read_frame(reader) == b"mute"
        assert await read_frame(reader) == body
        assert await read_frame(reader) == b"end"
        writer.close()
