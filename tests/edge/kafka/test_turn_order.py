"""Large requests of many clients: one turn at a time for all of them, and addresses alternate."""

import asyncio
from typing import Any, cast

import pytest
from handler_calls import FakeConnection, LoopClock

from moldau.edge.kafka import large_requests
from moldau.edge.kafka.large_requests import Steps, finish, turns_of
from moldau.edge.kafka.turn_order import TURNS, LargeRequests, Turns
from moldau.net.connection import Connection

STEPS = 40


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    monkeypatch.setattr(large_requests, "_CLOCK_INTERVAL", 1)


def turns_of_client(large: LargeRequests) -> Turns:
    return Turns(large, cast("Connection", FakeConnection()), "192.0.2.1", LoopClock())


class Clients:
    """Their large requests to one broker."""

    def __init__(self) -> None:
        self.large = LargeRequests()
        self.steps: list[str] = []
        """Who made each step."""
        self.tasks: list[asyncio.Task[str]] = []

    def ask(self, name: str, host: str = "192.0.2.1") -> FakeConnection:
        connection = FakeConnection()
        turns = Turns(self.large, cast("Connection", connection), host, LoopClock())
        self.tasks.append(asyncio.create_task(self._handle(name, turns)))
        return connection

    async def _handle(self, name: str, turns: Turns) -> str:
        TURNS.set(turns)
        try:
            return await finish(self._steps(name))
        finally:
            turns.end()

    def _steps(self, name: str) -> Steps[str]:
        for _ in range(STEPS):
            yield
            self.steps.append(name)
        return name

    def ended(self) -> list[str]:
        """In the order of their last steps."""
        last = {name: number for number, name in enumerate(self.steps)}
        return sorted(last, key=lambda name: last[name])

    async def settle(self) -> list[Any]:
        return await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_large_requests_take_one_turn_at_a_time_together() -> None:
    clients = Clients()
    names = [f"c{number}" for number in range(10)]
    for name in names:
        clients.ask(name)
    # The first turn of each, which is all that most requests need.
    await asyncio.sleep(0)
    begun = len(clients.steps)
    while not all(task.done() for task in clients.tasks):
        before = len(clients.steps)
        await asyncio.sleep(0)
        assert len(clients.steps) - before <= 1
    assert begun < len(names) * 2
    assert await clients.settle() == names
    assert clients.ended() == names


async def test_who_sends_many_large_requests_waits_for_itself() -> None:
    clients = Clients()
    for number in range(10):
        clients.ask(f"many-{number}")
    clients.ask("one", "192.0.2.2")
    await clients.settle()
    # The first was alone when it began.
    assert clients.ended()[:3] == ["many-0", "many-1", "one"]


async def test_a_request_stops_when_its_client_has_left() -> None:
    clients = Clients()
    leaves, _ = clients.ask("leaves"), clients.ask("stays")
    for _ in range(3):
        await asyncio.sleep(0)
    leaves.is_closed = True
    left, stayed = await clients.settle()
    assert isinstance(left, asyncio.CancelledError)
    assert stayed == "stays"
    assert clients.steps.count("leaves") < STEPS


@pytest.mark.parametrize("turns", range(12))
async def test_requests_that_are_cancelled_at_any_time_keep_nobody_waiting(turns: int) -> None:
    clients = Clients()
    for name in "abcd":
        clients.ask(name)
    clients.ask("e", "192.0.2.2")
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in clients.tasks[:3]:
        task.cancel()
    async with asyncio.timeout(60):
        assert (await clients.settle())[3:] == ["d", "e"]
    clients.ask("later")
    async with asyncio.timeout(60):
        assert (await clients.settle())[-1] == "later"


async def test_one_that_is_granted_its_turn_and_cancelled_passes_it_on() -> None:
    large = LargeRequests()
    await large.acquire("a")
    second = asyncio.create_task(large.acquire("b"))
    third = asyncio.create_task(large.acquire("c"))
    await asyncio.sleep(0)
    large.release()
    second.cancel()
    async with asyncio.timeout(60):
        await third
    assert second.cancelled()


async def test_handlers_that_wait_between_names_pass_a_gate_one_at_a_time() -> None:
    large, handled = LargeRequests(), 0

    async def handle() -> None:
        nonlocal handled
        TURNS.set(turns_of_client(large))
        async for _ in turns_of(range(STEPS)):
            handled += 1

    tasks = [asyncio.create_task(handle()) for _ in range(10)]
    await asyncio.sleep(0)
    assert handled == len(tasks)
    while not all(task.done() for task in tasks):
        before = handled
        await asyncio.sleep(0)
        assert handled - before <= 1
    assert handled == STEPS * len(tasks)


async def test_a_handler_that_waits_for_another_broker_keeps_no_turn() -> None:
    large = LargeRequests()
    answer = asyncio.Event()

    async def wait() -> str:
        await answer.wait()
        return "waited"

    def steps(result: Any) -> Steps[Any]:
        for _ in range(STEPS):
            yield
        return result

    async def handle(result: Any) -> Any:
        turns = turns_of_client(large)
        TURNS.set(turns)
        try:
            return await finish(steps(result))
        finally:
            turns.end()

    waiting = asyncio.create_task(handle(wait()))
    async with asyncio.timeout(60):
        assert await asyncio.create_task(handle("done")) == "done"
    assert not waiting.done()
    answer.set()
    assert await waiting == "waited"
