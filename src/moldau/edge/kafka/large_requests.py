"""Owns requests about many names: answered a part at a time, so that others are served between.

One request of a client with fifty thousand names would otherwise hold up everybody for seconds, the
heartbeats of brokers too.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, Final, TypeVar

from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000
_TURN_SECONDS_MAX: Final = 0.005
_BEGUN_PER_TURN: Final = 100
_LOOKED_AT_EVERY: Final = 32
"""A clock is asked only after so many names."""

N = TypeVar("N")
R = TypeVar("R")


async def answer_each(
    names: Sequence[N], answer: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> list[R]:
    """What `answer` says of each; or of too many what `refuse` does."""
    if len(names) > NAMES_MAX:
        return await _slowly(names, _refusing(len(names), refuse))
    return await _slowly(names, answer)


async def query_each(
    names: Sequence[N],
    ask: Callable[[N], Coroutine[Any, Any, R]],
    refuse: Callable[[N, RefusedError], R],
) -> list[R]:
    """As `answer_each`, where each has to wait for something: all wait together."""
    if len(names) > NAMES_MAX:
        return await _slowly(names, _refusing(len(names), refuse))
    asked: list[asyncio.Task[R]] = []
    left = iter(names)
    try:
        while some := list(islice(left, _BEGUN_PER_TURN)):
            asked += [asyncio.create_task(ask(name)) for name in some]
            if len(asked) < len(names):
                await asyncio.sleep(0)
        return await asyncio.gather(*asked)
    finally:
        for task in asked:
            task.cancel()


def _refusing(count: int, refuse: Callable[[N, RefusedError], R]) -> Callable[[N], R]:
    text = f"{count} names in one request; ask for at most {NAMES_MAX} at a time"
    # Not every answer has room for a text: whoever looks for the reason finds it here.
    log.warning("a client was refused: %s", text)
    error = RefusedError(ErrorCode.INVALID_REQUEST, text)
    return lambda name: refuse(name, error)


async def _slowly(names: Iterable[N], answer: Callable[[N], R]) -> list[R]:
    found: list[R] = []
    turn_ends = perf_counter() + _TURN_SECONDS_MAX
    for number, name in enumerate(names, 1):
        found.append(answer(name))
        if number % _LOOKED_AT_EVERY == 0 and perf_counter() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + _TURN_SECONDS_MAX
    return found
