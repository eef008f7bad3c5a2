"""The clocks of peers are read when metrics are requested."""

import asyncio
import struct

import pytest
from login_world import StillClock

from moldau.control.peer_clocks import PeerClocks
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod

TWO, THREE, FOUR = BrokerId(2), BrokerId(3), BrokerId(4)


class Peers:
    """Broker 2 is 90 s ahead, 3 knows no such method, 4 sends nonsense; each takes 0.2 s."""

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock
        self.calls = 0

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        assert method == PeerMethod.READ_CLOCK
        self.calls += 1
        if peer == THREE:
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
        if peer == FOUR:
            return b"?"
        self.clock.now_ms += 100
        answer = struct.pack(">q", self.clock.now_ms + 90_000)
        self.clock.now_ms += 100
        return answer


async def test_a_clock_that_differs_is_known_at_the_next_request() -> None:
    clock = StillClock()
    peers = Peers(clock)
    clocks = PeerClocks(clock=clock, caller=peers, peers=lambda: [TWO, THREE, FOUR])
    assert clocks.readings() == {}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    readings = clocks.readings()
    assert readings.keys() == {TWO}
    assert readings[TWO].ahead_seconds == pytest.approx(90)
    assert readings[TWO].round_trip_seconds == pytest.approx(0.2)


async def test_clocks_are_not_read_more_often_than_every_few_seconds() -> None:
    clock = StillClock()
    peers = Peers(clock)
    clocks = PeerClocks(clock=clock, caller=peers, peers=lambda: [TWO])
    for _ in range(5):
        clocks.readings()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert peers.calls == 1
    clock.now_ms += 60_000
    clocks.readings()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peers.calls == 2


async def test_a_peer_that_does_not_answer_for_long_has_no_known_clock() -> None:
    clock, there = StillClock(), [TWO]
    clocks = PeerClocks(clock=clock, caller=Peers(clock), peers=lambda: there)
    await clocks.read_all()
    assert TWO in clocks.readings()
    there.clear()
    clock.now_ms += 3_600_000
    assert clocks.readings() == {}


async def test_the_own_clock_is_sent() -> None:
    clock = StillClock()
    clocks = PeerClocks(clock=clock, caller=Peers(clock), peers=list)
    assert await clocks.on_request(TWO, b"") == struct.pack(">q", clock.now_ms)
