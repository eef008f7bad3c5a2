"""Handles requests with many names in turns, so that other clients are served in between.

A request with fifty thousand names would otherwise block the event loop for seconds, and with it
the heartbeats between brokers. One rule for all handlers that loop over what a client names:

- a plain handler is a generator with a `yield` per name, and `@in_turns`. A request of ordinary
  size is answered at once, others as a task;
- an `async` one uses `async for … in turns_of(names)`, `handle_each`, `query_each` or `run_each`;
- what is passed on as a whole is refused above NAMES_MAX: `refuse_too_many`.

`tests/edge/kafka/test_turns.py` finds a handler that does none of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from functools import wraps
from itertools import islice
from time import perf_counter
from typing import Any, Final, TypeVar, cast

from moldau.api.quotas import charged
from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000
_TURN_SECONDS_MAX: Final = 0.005
_STARTED_PER_TURN: Final = 100
_WARN_SECONDS: Final = 10.0
_CLOCK_INTERVAL: Final = 32
"""The clock is read only after this many names."""

C = TypeVar("C")
N = TypeVar("N")
Q = TypeVar("Q")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""What a handler with `@in_turns` returns: it yields once per name, and ends with the response."""


def in_turns(
    handle: Callable[[C, Q], Steps[R | Coroutine[Any, Any, R]]] | Callable[[C, Q], Steps[R]],
) -> Callable[[C, Q], R | Coroutine[Any, Any, R]]:
    """A handler that is done in its first turn, or continues as a coroutine."""

    @wraps(handle)
    def begin(call: C, request: Q) -> R | Coroutine[Any, Any, R]:
        steps = handle(call, request)
        result = _take_turn(steps)
        return _go_on(steps) if result is None else result

    return begin


def _take_turn(steps: Steps[R]) -> R | None:
    """The result of the steps; None if the turn ends before them."""
    turn_ends = perf_counter() + _TURN_SECONDS_MAX
    try:
        while True:
            for _ in range(_CLOCK_INTERVAL):
                next(steps)
            if perf_counter() >= turn_ends:
                return None
    except StopIteration as end:
        return cast("R", end.value)


async def _go_on(steps: Steps[R | Coroutine[Any, Any, R]]) -> R:
    result = None
    while result is None:
        await asyncio.sleep(0)
        result = _take_turn(steps)
    return await result if isinstance(result, Coroutine) else result


async def turns_of(names: Iterable[N]) -> AsyncIterator[N]:
    """The names; other clients are served after some of them."""
    turn_ends = perf_counter() + _TURN_SECONDS_MAX
    for number, name in enumerate(names, 1):
        yield name
        if number % _CLOCK_INTERVAL == 0 and perf_counter() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + _TURN_SECONDS_MAX


async def handle_each(
    names: Sequence[N], handle: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> list[R]:
    """The result of `handle` for each name; if there are too many, of `refuse`."""
    try:
        refuse_too_many(len(names))
    except RefusedError as error:
        return [refuse(name, error) async for name in turns_of(names)]
    return [handle(name) async for name in turns_of(names)]


async def query_each(
    names: Sequence[N],
    query: Callable[[N], Coroutine[Any, Any, R]],
    refuse: Callable[[N, RefusedError], R],
) -> list[R]:
    """As `handle_each`, for coroutines: all of them wait concurrently."""
    try:
        refuse_too_many(len(names))
    except RefusedError as error:
        return [refuse(name, error) async for name in turns_of(names)]
    tasks: list[asyncio.Task[R]] = []
    left = iter(names)
    try:
        while some := list(islice(left, _STARTED_PER_TURN)):
            tasks += [asyncio.create_task(charged(query(name))) for name in some]
            if len(tasks) < len(names):
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def refuse_too_many(count: int) -> None:
    """Raises RefusedError."""
    if count > NAMES_MAX:
        text = f"{count} names in one request; the limit is {NAMES_MAX}"
        _rejections.warn(text)
        raise RefusedError(ErrorCode.INVALID_REQUEST, text)


class _Rejections:
    """Logged, because not every response has a field for an error message; but a client that
    repeats its request must not fill the disk."""

    def __init__(self) -> None:
        self._warned_at = float("-inf")
        self._left_out = 0

    def warn(self, text: str) -> None:
        now = perf_counter()
        if now - self._warned_at < _WARN_SECONDS:
            self._left_out += 1
            return
        more = f" ({self._left_out} more were rejected before)" if self._left_out else ""
        self._warned_at, self._left_out = now, 0
        log.warning("client request rejected: %s%s", text, more)


_rejections: Final = _Rejections()
