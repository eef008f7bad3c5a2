"""Requests about many names: others are served between, and too many are refused."""

import asyncio

import pytest

from moldau.edge.kafka import names
from moldau.edge.kafka.names import answer_each, ask_each
from moldau.model.errors import ErrorCode, RefusedError


def refuse(name: int, error: RefusedError) -> str:
    assert error.code is ErrorCode.INVALID_REQUEST
    return f"{name}: {error}"


async def turns_during(work: asyncio.Task) -> int:
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_each_is_answered_in_order_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "_TURN_SECONDS_MAX", 0.0)
    task = asyncio.create_task(answer_each(range(100), str, refuse))
    assert await turns_during(task) >= 100
    assert await task == [str(number) for number in range(100)]


async def test_some_are_asked_at_once_and_answered_in_order() -> None:
    at_once = most = 0

    async def ask(number: int) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return str(number)

    assert await ask_each(range(250), ask, refuse) == [str(number) for number in range(250)]
    assert most == 100


@pytest.mark.parametrize("each", [answer_each, ask_each])
async def test_too_many_are_refused_with_what_to_do(each, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "NAMES_MAX", 2)

    def never(number: int) -> str:
        raise AssertionError

    (first, *_), text = await each(range(3), never, refuse), "ask for at most 2 at a time"
    assert first == f"0: 3 names in one request; {text}"
