"""Memory of requests that arrive slowly, or never. Real sockets on loopback."""

import asyncio
import os
import struct
import zlib
from pathlib import Path

import pytest
from connections import Recorder, echo, framed, listening, read_frame
from tls_world import TlsWorld

from moldau.net.budget import ByteBudget
from moldau.net.connection import NONE_OVERLAP, Connection
from moldau.net.replies import DeferredReply
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

MIB = 1 << 20


def sized(connection: Connection, frame: bytes) -> None:
    connection.reply([framed(b"%d" % len(frame))])


async def test_announced_requests_leave_the_memory_to_others() -> None:
    budget = ByteBudget(16 * MIB)
    async with listening(Recorder(sized), request_bytes_max=16 * MIB, budget=budget) as (_, port):
        attackers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in attackers:
            writer.write(struct.pack(">i", 15 * MIB) + bytes(1000))
        await until(lambda: budget.used > 0, "the first is counted")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(framed(bytes(900_000)))
            assert await read_frame(reader) == b"900000"
        assert budget.used <= 3 * MIB
        for _, each in [*attackers, (reader, writer)]:
            each.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_large_requests_of_one_client_take_turns_and_others_go_on(
    tls: bool, tmp_path: Path
) -> None:
    world = TlsWorld(tmp_path) if tls else None
    budget = ByteBudget(4 * MIB)
    handler = Recorder(lambda connection, frame: echo(connection, b"%d" % zlib.crc32(frame)))
    async with listening(
        handler,
        request_bytes_max=16 * MIB,
        budget=budget,
        tls=world.contexts() if world else None,
    ) as (_, port):

        async def send(body: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                port,
                ssl=world.client() if world else None,
                server_hostname="localhost" if world else None,
            )
            frame = framed(body)
            for start in range(0, len(frame), 700_000):
                writer.write(frame[start : start + 700_000])
                await writer.drain()
            answer = await read_frame(reader)
            writer.close()
            return answer

        bodies = [os.urandom(MIB) * 9 + bytes([number]) for number in range(6)]
        answers = await asyncio.gather(*(send(body) for body in bodies))
        assert answers == [b"%d" % zlib.crc32(body) for body in bodies]
        await until(lambda: handler.closed == len(bodies), "all are closed")
    assert budget.used == 0


@pytest.mark.parametrize("begins", [b"", framed(b"another")])
@pytest.mark.parametrize("announced", [1000, 8 * MIB])
async def test_a_byte_now_and_then_does_not_keep_a_connection(
    monkeypatch: pytest.MonkeyPatch, announced: int, begins: bytes
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    clock = ManualClock()
    handler = Recorder(echo)
    budget = ByteBudget(64 * MIB)
    async with listening(handler, request_bytes_max=16 * MIB, clock=clock, budget=budget) as (
        _,
        port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begins[:5])
        await until(lambda: budget.used > 0 or not begins, "half of another request")
        writer.write(begins[5:] + struct.pack(">i", announced))
        if begins:
            assert await read_frame(reader) == b"another"
        closing = asyncio.create_task(reader.read())
        for _ in range(100):
            if closing.done():
                break
            writer.write(b"x")
            await asyncio.sleep(0.02)
            clock.steady += 1
        assert await asyncio.wait_for(closing, wait_seconds_max()) == b""
        assert 25 < clock.steady < 60
        writer.close()


async def test_a_request_that_arrives_steadily_may_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    clock = ManualClock()
    budget = ByteBudget(64 * MIB)
    handler = Recorder(sized)
    async with listening(handler, request_bytes_max=32 * MIB, clock=clock, budget=budget) as (
        _,
        port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frame = framed(bytes(30 * MIB))
        for start in range(0, len(frame), MIB):
            writer.write(frame[start : start + MIB])
            await writer.drain()
            await asyncio.sleep(0.02)
            clock.steady += 3
        assert await read_frame(reader) == b"%d" % (30 * MIB)
        writer.close()


async def test_requests_that_wait_for_memory_are_closed_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    clock = ManualClock()
    budget = ByteBudget(2 * MIB)
    seen: list[Connection] = []
    async with listening(
        Recorder(sized),
        request_bytes_max=4 * MIB,
        budget=budget,
        clock=clock,
        on_accepted=seen.append,
    ) as (listener, port):
        attackers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        for _, writer in attackers:
            # Half of it, and then silence.
            writer.write(struct.pack(">i", 3 * MIB) + bytes(MIB + MIB // 2))
        await until(lambda: budget.exhausted, "the memory is used up")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"small"))
        assert await read_frame(reader) == b"5"
        writer.write(framed(bytes(MIB)))
        # Not only the one whose turn it is.
        assert all(connection.is_slow(clock.steady + 40) for connection in seen[:8])
        clock.steady += 40
        await until(lambda: listener.connection_count <= 1, "the attackers are closed")
        for _, each in [*attackers, (reader, writer)]:
            each.close()


async def test_a_client_without_a_login_gets_little_memory() -> None:
    budget = ByteBudget(64 * MIB)
    handler = Recorder(sized)
    seen: list[Connection] = []

    def accepted(connection: Connection) -> None:
        connection.await_login()
        seen.append(connection)

    async with listening(
        handler,
        budget=budget,
        connections_max=500,
        connections_per_address_max=500,
        on_accepted=accepted,
    ) as (_, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in pairs:
            writer.write(struct.pack(">i", 65536) + b"\0\x12\0\0")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"small") + framed(bytes(60_000)))
        assert await read_frame(reader) == b"5"
        assert await read_frame(reader) == b"60000"
        await until(lambda: len(seen) == 201, "all are accepted")
        assert budget.used == 0
        assert budget.before_login.used <= 201 * 4096
        seen[0].set_user("User:alice")
        assert 0 < budget.used <= 4096
        for _, each in [*pairs, (reader, writer)]:
            each.close()


async def test_a_request_that_waits_behind_others_is_not_slow() -> None:
    clock = ManualClock()
    waiting: list[tuple[Connection, DeferredReply]] = []

    def answer(connection: Connection, frame: bytes) -> None:
        connection.overlaps = NONE_OVERLAP
        waiting.append((connection, connection.defer()))

    async with listening(Recorder(answer), clock=clock) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"first") + framed(b"second") + framed(b"third")[:6])
        await until(lambda: len(waiting) == 1, "the first is handled")
        clock.steady += 100
        connection, reply = waiting[0]
        assert not connection.is_slow(clock.steady)
        reply.complete([framed(b"ok")])
        await until(lambda: len(waiting) == 2, "the second is handled")
        # The time of the third begins now.
        assert not connection.is_slow(clock.steady + 20)
        assert connection.is_slow(clock.steady + 40)
        assert await read_frame(reader) == b"ok"
        writer.close()
