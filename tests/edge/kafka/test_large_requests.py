"""Requests about many names: others are served between, and too many are refused."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import FakeConnection, LoopClock

from moldau.edge.kafka import large_requests
from moldau.edge.kafka.handler import Call
from moldau.edge.kafka.large_requests import Steps, handle_each, in_turns, query_each
from moldau.edge.kafka.turn_order import TURNS, LargeRequests, Turns
from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.connection import Connection


class SlowClock(LoopClock):
    """Each step of a handler takes so long."""

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.step_seconds = step_seconds
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += self.step_seconds


def call_with(clock: SlowClock) -> Call:
    """As the dispatcher makes it."""
    TURNS.set(Turns(LargeRequests(), cast("Connection", FakeConnection()), "192.0.2.1", clock))
    return cast("Call", SimpleNamespace(session=SimpleNamespace(clock=clock)))


@pytest.fixture(autouse=True)
def call() -> Call:
    """In a broker with a clock that stands still."""
    return call_with(SlowClock())


def refuse(name: int, error: RefusedError) -> str:
    assert error.code is ErrorCode.INVALID_REQUEST
    return f"{name}: {error}"


async def turns_during(work: asyncio.Task[Any]) -> int:
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_each_is_answered_in_order_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    monkeypatch.setattr(large_requests, "_CLOCK_INTERVAL", 1)
    task = asyncio.create_task(handle_each(range(100), str, refuse))
    assert await turns_during(task) >= 100
    assert await task == [str(number) for number in range(100)]


async def test_a_repeated_name_is_handled_once() -> None:
    assert await handle_each([2, 1, 2, 2], str, refuse) == ["2", "1"]


async def test_all_wait_together_are_begun_in_turns_and_answered_in_order() -> None:
    begun = 0
    leader = asyncio.Event()

    async def ask(number: int) -> str:
        nonlocal begun
        begun += 1
        await leader.wait()
        return str(number)

    task = asyncio.create_task(query_each(range(250), ask, refuse))
    await asyncio.sleep(0)
    assert begun <= 100
    while begun < 250:
        await asyncio.sleep(0)
    assert not task.done()
    leader.set()
    assert await task == [str(number) for number in range(250)]


async def test_one_that_fails_ends_the_others() -> None:
    left = 0

    async def ask(number: int) -> str:
        nonlocal left
        try:
            await asyncio.sleep(number)
        finally:
            left += 1
        raise RefusedError(ErrorCode.INVALID_REQUEST)

    with pytest.raises(RefusedError):
        await query_each(range(5), ask, refuse)
    await asyncio.sleep(0)
    assert left == 5


@pytest.mark.parametrize("each", [handle_each, query_each])
async def test_too_many_are_refused_with_what_to_do(each, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "NAMES_MAX", 2)

    def never(number: int) -> str:
        raise AssertionError

    (first, *_), text = await each(range(3), never, refuse), "the limit is 2"
    assert first == f"0: 3 names in one request; {text}"


@in_turns
def count(call: Call, end: int) -> Steps[list[int]]:
    found = []
    for number in range(end):
        yield
        found.append(number)
        cast("SlowClock", call.session.clock).step()
    return found


async def test_a_request_of_ordinary_size_is_answered_at_once(call: Call) -> None:
    assert count(call, 3) == [0, 1, 2]
    assert count(call, 0) == []


@pytest.mark.parametrize(("step_seconds", "turns"), [(0.0, 0), (0.001, 130), (0.01, 250)])
async def test_the_clock_of_the_broker_ends_a_turn(step_seconds: float, turns: int) -> None:
    result = count(call_with(SlowClock(step_seconds)), 1000)
    if not turns:
        assert result == list(range(1000))
        return
    assert asyncio.iscoroutine(result)
    task = asyncio.create_task(result)
    assert abs(await turns_during(task) - turns) < turns / 10
    assert await task == list(range(1000))


async def test_a_large_request_goes_on_while_others_are_served(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    result = count(call, 1000)
    assert asyncio.iscoroutine(result)
    task = asyncio.create_task(result)
    assert await turns_during(task) >= 1000 // large_requests._CLOCK_INTERVAL_FIRST
    assert await task == list(range(1000))


@pytest.mark.parametrize("names", [1, 1000])
async def test_a_handler_may_end_with_a_coroutine(
    names: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)

    async def last() -> str:
        await asyncio.sleep(0)
        return "done"

    @in_turns
    def handle(call: Call, request: int) -> Steps[Any]:
        for _ in range(request):
            yield
        return last()

    assert await handle(call, names) == "done"


def test_rejected_requests_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(large_requests, "perf_counter", lambda: now)
    monkeypatch.setattr(large_requests, "_rejections", large_requests._Rejections())
    for _ in range(100):
        with pytest.raises(RefusedError):
            large_requests.refuse_too_many(large_requests.NAMES_MAX + 1)
    assert len(caplog.records) == 1
    now += 11.0
    with pytest.raises(RefusedError):
        large_requests.refuse_too_many(large_requests.NAMES_MAX + 1)
    assert caplog.records[-1].getMessage().endswith("(99 more were rejected before)")
