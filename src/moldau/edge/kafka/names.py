"""Owns requests about many names: answered a part at a time, so that others are served between.

One request of a client with fifty thousand names would otherwise hold up everybody for seconds, the
heartbeats of brokers too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, Final, TypeVar

from moldau.model.errors import ErrorCode, RefusedError

NAMES_MAX: Final = 10_000
_TURN_SECONDS_MAX: Final = 0.005
_AT_ONCE_MAX: Final = 100

N = TypeVar("N")
R = TypeVar("R")


async def answer_each(
    names: Sequence[N], answer: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> list[R]:
    """What `answer` says of each; or of too many what `refuse` does."""
    if len(names) > NAMES_MAX:
        return await _slowly(names, _refusing(len(names), refuse))
    return await _slowly(names, answer)


async def ask_each(
    names: Sequence[N],
    ask: Callable[[N], Coroutine[Any, Any, R]],
    refuse: Callable[[N, RefusedError], R],
) -> list[R]:
    """As `answer_each`, where each has to wait for something: some at once."""
    if len(names) > NAMES_MAX:
        return await _slowly(names, _refusing(len(names), refuse))
    found: list[R] = []
    left = iter(names)
    while some := list(islice(left, _AT_ONCE_MAX)):
        found += await asyncio.gather(*map(ask, some))
        await asyncio.sleep(0)
    return found


def _refusing(count: int, refuse: Callable[[N, RefusedError], R]) -> Callable[[N], R]:
    error = RefusedError(
        ErrorCode.INVALID_REQUEST,
        f"{count} names in one request; ask for at most {NAMES_MAX} at a time",
    )
    return lambda name: refuse(name, error)


async def _slowly(names: Iterable[N], answer: Callable[[N], R]) -> list[R]:
    found: list[R] = []
    turn_ends = perf_counter() + _TURN_SECONDS_MAX
    for name in names:
        found.append(answer(name))
        if perf_counter() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + _TURN_SECONDS_MAX
    return found
