"""Handshakes in progress: which one is closed at a limit, and whose turn it is. Virtual time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from handler_calls import LoopClock

from harness.virtual_loop import run_virtually
from moldau.net.failure_log import FailureLog
from moldau.net.tls import handshakes
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.net.tls.handshakes import Handshakes

STEP_SECONDS = 0.05


class HalfOpen:
    """A connection that remembers what happens to it."""

    def __init__(self, running: Handshakes, host: str, log: list[str]) -> None:
        self.address = f"{host}:1"
        self._host = host
        self._running = running
        self._log = log
        self.closed_because = ""
        self.is_answered = False
        running.began(self, host)

    def close(self, reason: str) -> None:
        self.closed_because = reason
        self._running.ended(self)

    def wait_for_turn(self) -> None:
        pass

    def take_turn(self) -> None:
        self._log.append(self._host)
        self._running.took(STEP_SECONDS)
        self.is_answered = True

    def receive(self) -> None:
        if self._running.has_turn(self):
            self.take_turn()


def run(test: Coroutine[Any, Any, None]) -> None:
    run_virtually(test)


def made(seconds_max: float = 10.0) -> Handshakes:
    loop, clock = asyncio.get_running_loop(), LoopClock()
    turns = HandshakeTurns(loop, clock)
    return Handshakes(loop, clock, seconds_max, FailureLog(clock), turns)


def test_the_oldest_of_an_address_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_PER_ADDRESS_MAX", 2)

    async def check() -> None:
        running = made()
        other = HalfOpen(running, "b", [])
        opened = [HalfOpen(running, "a", []) for _ in range(3)]
        assert "limit of 2 handshakes per address" in opened[0].closed_because
        assert not any(each.closed_because for each in (*opened[1:], other))

    run(check())


def test_at_the_limit_of_all_the_address_with_most_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 4)

    async def check() -> None:
        running = made()
        good = HalfOpen(running, "good", [])
        bad = [HalfOpen(running, "bad", []) for _ in range(3)]
        late = HalfOpen(running, "other", [])
        assert "limit of 4 handshakes in progress" in bad[0].closed_because
        assert not any(each.closed_because for each in (good, late, *bad[1:]))
        assert len(running) == 4

    run(check())


def test_a_flood_of_one_address_delays_another_by_one_step() -> None:
    async def check() -> None:
        running = made()
        log: list[str] = []
        for _ in range(100):
            HalfOpen(running, "bad", log).receive()
        at_once = len(log)
        assert at_once < 10
        HalfOpen(running, "good", log).receive()
        while "good" not in log:
            await asyncio.sleep(0.01)
        assert log.index("good") <= at_once + 1

    run(check())


def test_the_second_step_comes_before_first_ones() -> None:
    async def check() -> None:
        running = made()
        log: list[str] = []
        good = HalfOpen(running, "good", log)
        good.receive()
        for number in range(100):
            HalfOpen(running, f"bad-{number}", log).receive()
        at_once = len(log)
        good.receive()
        while log.count("good") < 2:
            await asyncio.sleep(0.01)
        assert log[at_once:].index("good") == 0

    run(check())


def test_second_steps_do_not_starve_first_ones() -> None:
    """A client can get a cheap first answer: its second step has the cost of the handshake."""

    async def check() -> None:
        running = made(seconds_max=1000.0)
        log: list[str] = []
        bad = [HalfOpen(running, f"bad-{number}", log) for number in range(100)]
        for each in bad:
            each.is_answered = True
            each.receive()
        good = [HalfOpen(running, f"good-{number}", log) for number in range(10)]
        for each in good:
            each.receive()
        at_once = len(log)
        await asyncio.sleep(100 * STEP_SECONDS)
        taken = log[at_once : at_once + 20]
        assert [host for host in taken if host.startswith("good")] == [
            f"good-{number}" for number in range(10)
        ]

    run(check())


def test_steps_take_a_fifth_of_the_time() -> None:
    async def check() -> None:
        running = made(seconds_max=1000.0)
        log: list[str] = []
        for _ in range(400):
            HalfOpen(running, "bad", log).receive()
        await asyncio.sleep(30.0)
        assert 0.15 < len(log) * STEP_SECONDS / 30.0 < 0.22

    run(check())


def test_those_that_wait_too_long_are_closed_and_take_no_turn() -> None:
    async def check() -> None:
        running = made(seconds_max=2.0)
        log: list[str] = []
        opened = [HalfOpen(running, "bad", log) for _ in range(100)]
        for each in opened:
            each.receive()
        await asyncio.sleep(3.0)
        assert all("within 2 s" in each.closed_because for each in opened)
        steps = len(log)
        await asyncio.sleep(10.0)
        assert len(log) == steps
        assert not running._first
        assert not running._second
        assert not running._by_address

    run(check())
