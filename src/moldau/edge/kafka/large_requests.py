"""Handles requests with many names in steps, so that other clients are served in between.

A request with fifty thousand names would otherwise block the event loop for seconds, and with it
the heartbeats between brokers.
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
_STARTED_PER_TURN: Final = 100
_CLOCK_INTERVAL: Final = 32
"""The clock is read only after this many names."""

N = TypeVar("N")
R = TypeVar("R")


async def handle_each(
    names: Sequence[N], handle: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> list[R]:
    """The result of `handle` for each name; if there are too many, of `refuse`."""
    if len(names) > NAMES_MAX:
        return await _in_steps(names, _refusing(len(names), refuse))
    return await _in_steps(names, handle)


async def query_each(
    names: Sequence[N],
    query: Callable[[N], Coroutine[Any, Any, R]],
    refuse: Callable[[N, RefusedError], R],
) -> list[R]:
    """As `handle_each`, for coroutines: all of them wait concurrently."""
    if len(names) > NAMES_MAX:
        return await _in_steps(names, _refusing(len(names), refuse))
    tasks: list[asyncio.Task[R]] = []
    left = iter(names)
    try:
        while some := list(islice(left, _STARTED_PER_TURN)):
            tasks += [asyncio.create_task(query(name)) for name in some]
            if len(tasks) < len(names):
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _refusing(count: int, refuse: Callable[[N, RefusedError], R]) -> Callable[[N], R]:
    text = f"{count} names in one request; the limit is {NAMES_MAX}"
    # Logged, because not every response has a field for an error message.
    log.warning("client request rejected: %s", text)
    error = RefusedError(ErrorCode.INVALID_REQUEST, text)
    return lambda name: refuse(name, error)


async def _in_steps(names: Iterable[N], handle: Callable[[N], R]) -> list[R]:
    found: list[R] = []
    turn_ends = perf_counter() + _TURN_SECONDS_MAX
    for number, name in enumerate(names, 1):
        found.append(handle(name))
        if number % _CLOCK_INTERVAL == 0 and perf_counter() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + _TURN_SECONDS_MAX
    return found
