"""Handshakes of HTTP wait for their turn, and what they take is counted for all listeners."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
import uvloop
from tls_world import TlsWorld

from moldau.edge.http.limits import ConnectionCounts, HttpLimits
from moldau.edge.http.tls_front import TlsFront
from moldau.net.failure_log import FailureLog
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.server.clock import SystemClock
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


class CountedTurns(HandshakeTurns):
    """With a clock that stands still: no time is left again until the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.steps: list[float] = []
        super().__init__(asyncio.get_running_loop(), self.clock)

    def took(self, seconds: float) -> None:
        self.steps.append(seconds)
        super().took(seconds)


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"hello")
        transport.close()


@contextlib.asynccontextmanager
async def fronting(world: TlsWorld, turns: HandshakeTurns) -> AsyncIterator[tuple[TlsFront, int]]:
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        front = TlsFront(
            listening,
            TlsContexts(world.files(), turns),
            Greeting,
            limits=HttpLimits(request_seconds_max=600.0),
            counted=ConnectionCounts(),
            failures=FailureLog(clock),
            clock=clock,
            plain_reply=b"",
        )
        front.start()
        try:
            yield front, listening.getsockname()[1]
        finally:
            front.close()


@pytest.fixture
def world(tmp_path) -> TlsWorld:
    return TlsWorld(tmp_path)


async def greeted(world: TlsWorld, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=world.client())
    try:
        return await asyncio.wait_for(reader.read(), wait_seconds_max())
    finally:
        writer.close()


async def test_a_handshake_is_counted_also_of_a_client_that_leaves(world) -> None:
    turns = CountedTurns()
    async with fronting(world, turns) as (_, port):
        assert await greeted(world, port) == b"hello"
        complete = len(turns.steps)
        assert complete >= 3
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00")
            await until(lambda: len(turns.steps) >= complete + 2, "the step is counted")


def test_the_same_under_uvloop(world) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_handshake_is_counted_also_of_a_client_that_leaves(world))


async def test_handshakes_wait_while_others_have_used_up_the_time(world) -> None:
    turns = CountedTurns()
    async with fronting(world, turns) as (front, port):
        turns.took(0.03)
        steps = len(turns.steps)
        clients = [asyncio.create_task(greeted(world, port)) for _ in range(5)]
        await until(lambda: len(front._waiting) == 5, "all wait")
        assert len(turns.steps) == steps
        # Enough for two or three of them: the others are not let in together with those.
        turns.clock.steady += 0.0113 / 0.2
        await until(lambda: len(front._waiting) < 5, "some have their turn")
        assert len(front._waiting) >= 2
        while front._waiting:
            turns.clock.steady += 1.0
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*clients) == [b"hello"] * 5


async def test_a_stop_ends_those_that_wait(world) -> None:
    turns = CountedTurns()
    async with fronting(world, turns) as (front, port):
        turns.took(1.0)
        client = asyncio.create_task(greeted(world, port))
        await until(lambda: len(front._waiting) == 1, "it waits")
    with pytest.raises(OSError):
        await client
    assert not front._waiting
