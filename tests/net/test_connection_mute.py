"""Muted connections: nothing more is read, replies are sent. Real sockets on loopback."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from connections import Recorder, echo, framed, listening, read_frame
from tls_world import TlsWorld

from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

LONG = 3600.0
SHORT = 0.05


def mutes(seconds: float) -> Callable[[Connection, bytes], None]:
    """Answers, and mutes the connection after a frame that says so."""

    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"mute":
            ends = time.monotonic() + seconds
            connection.mute(lambda: ends - time.monotonic())
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


async def test_a_mute_lasts_for_as_long_as_there_is_time_left() -> None:
    left = [LONG]

    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"mute":
            connection.mute(lambda: left[0])
            # Of the same client, and of no effect on the first.
            connection.mute(lambda: 0.0)
        echo(connection, frame)

    handler = Recorder(answer)
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"mute") + framed(b"next"))
        assert await read_frame(reader) == b"mute"
        assert handler.frames == [b"mute"]
        # As when a quota is taken back.
        left[0] = 0.0
        assert await read_frame(reader) == b"next"
        writer.close()


async def test_no_time_is_no_mute() -> None:
    def answer(connection: Connection, frame: bytes) -> None:
        connection.mute(lambda: 0.0)
        echo(connection, frame)

    async with listening(Recorder(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"first") + framed(b"second"))
        assert [await read_frame(reader) for _ in range(2)] == [b"first", b"second"]
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


@pytest.mark.parametrize("tls", [False, True])
async def test_a_muted_connection_is_not_closed_for_the_memory_of_others(
    tls: bool, tmp_path: Path
) -> None:
    world = TlsWorld(tmp_path) if tls else None
    budget = ByteBudget(1 << 20)
    contexts = world.contexts() if world else None
    async with listening(Recorder(mutes(SHORT)), budget=budget, tls=contexts) as (_, port):
        # What others have in flight.
        budget.acquire((1 << 19) + 1)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            port,
            ssl=world.client() if world else None,
            server_hostname="localhost" if world else None,
        )
        bodies = [b"mute", b"next", b"mute", os.urandom(24_000), b"mute"]
        writer.write(b"".join(framed(body) for body in bodies))
        assert [await read_frame(reader) for _ in bodies] == bodies
        await until(lambda: budget.muted == 0, "nothing is kept by muted connections")
        budget.release((1 << 19) + 1)
        writer.close()


async def test_a_mute_from_outside_counts_what_the_connection_keeps_until_it_ends() -> None:
    budget = ByteBudget(1 << 24)
    seen: list[Connection] = []
    left = [LONG]

    def answer(connection: Connection, frame: bytes) -> None:
        seen.append(connection)
        echo(connection, frame)

    async with listening(Recorder(answer), budget=budget) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"first") + framed(bytes(100_000))[:50_000])
        assert await read_frame(reader) == b"first"
        await until(lambda: budget.used > 0, "half of a request is kept")
        seen[0].mute(lambda: left[0])
        assert budget.muted == budget.used > 0
        left[0] = 0.0
        await until(lambda: budget.muted == 0, "the mute has ended")
        left[0] = LONG
        seen[0].mute(lambda: left[0])
        assert budget.muted == budget.used > 0
        seen[0].close("test")
        assert (budget.muted, budget.used) == (0, 0)
        writer.close()


async def test_a_muted_connection_that_is_closed_for_its_memory_gets_its_pending_replies() -> None:
    budget = ByteBudget(1 << 18)
    pending: list[DeferredReply] = []

    def answer(connection: Connection, frame: bytes) -> None:
        connection.mute(lambda: LONG)
        pending.append(connection.defer())

    async with listening(Recorder(answer), budget=budget) as (listener, port):
        # What other muted connections keep.
        budget.muted += 1 << 18
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"stored by others") + framed(b"unread"))
        await until(lambda: len(pending) == 1, "the request is pending")
        assert budget.used <= 16
        pending[0].complete([framed(b"confirmed")])
        assert await read_frame(reader) == b"confirmed"
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        await until(lambda: not listener.connection_count, "the connection is closed")
        assert (len(pending), budget.used, budget.muted) == (1, 0, 1 << 18)
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_muted_connections_leave_half_of_the_memory_to_others(
    tls: bool, tmp_path: Path
) -> None:
    world = TlsWorld(tmp_path) if tls else None
    budget = ByteBudget(1 << 18)
    handler = Recorder(mutes(LONG))
    async with listening(handler, budget=budget, tls=world.contexts() if world else None) as (
        listener,
        port,
    ):
        writers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                port,
                ssl=world.client() if world else None,
                server_hostname="localhost" if world else None,
            )
            writers.append(writer)
            writer.write(framed(b"mute") + framed(os.urandom(24_000)))
            # Also those that are closed then have their reply.
            assert await read_frame(reader) == b"mute"
        await until(lambda: listener.connection_count < 8, "some are closed")
        assert listener.connection_count >= 2
        assert not budget.exhausted
        for writer in writers:
            writer.close()
