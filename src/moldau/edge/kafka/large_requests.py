"""Handles requests with many names in turns, so that other clients are served in between.

A request with fifty thousand names would otherwise block the event loop for seconds, and with it
the heartbeats between brokers. One rule for all handlers that loop over what a client names:

- a plain handler is a generator with a `yield` per name, and `@in_turns`. A request of ordinary
  size is answered at once, others as a task;
- an `async` one uses `async for … in turns_of(names)`, `handle_each`, `query_each` or `run_each`;
- what is passed on as a whole is refused above NAMES_MAX: `refuse_too_many`;
- where an answer can be larger than the name, a name that is repeated is answered once: `different`
  finds those that are not.

How the turns of many requests alternate: `turn_order.py`. `tests/edge/kafka/test_turns.py` finds a
handler that does none of it.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Sequence,
)
from functools import wraps
from itertools import islice
from time import perf_counter
from typing import Any, Final, TypeVar, cast

from moldau.api.quotas import charged
from moldau.edge.kafka.handler import Call
from moldau.edge.kafka.turn_order import TURNS
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000
_TURN_SECONDS_MAX: Final = 0.005
_STARTED_PER_TURN: Final = 100
_WARN_SECONDS: Final = 10.0
_CLOCK_INTERVAL: Final = 4
"""The clock is read only after this many steps."""
_CLOCK_INTERVAL_FIRST: Final = 32
"""In the first turn of a handler: most end before."""

N = TypeVar("N")
Q = TypeVar("Q")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""What a handler with `@in_turns` returns: it yields once per name, or more often if the answer to
one is long, and ends with the response."""


def in_turns(
    handle: Callable[[Call, Q], Steps[R | Coroutine[Any, Any, R]]] | Callable[[Call, Q], Steps[R]],
) -> Callable[[Call, Q], R | Coroutine[Any, Any, R]]:
    """A handler that is done in its first turn, or continues as a coroutine."""

    @wraps(handle)
    def begin(call: Call, request: Q) -> R | Coroutine[Any, Any, R]:
        steps = handle(call, request)
        result = _take_turn(steps, _CLOCK_INTERVAL_FIRST, call.session.clock)
        return _go_on(steps) if result is None else result

    return begin


def _take_turn(steps: Steps[R], clock_interval: int, clock: Clock) -> R | None:
    """The result of the steps; None if the turn ends before them."""
    turn_ends = clock.monotonic() + _TURN_SECONDS_MAX
    try:
        while True:
            for _ in range(clock_interval):
                next(steps)
            if clock.monotonic() >= turn_ends:
                return None
    except StopIteration as end:
        return cast("R", end.value)


def begin(steps: Steps[R], clock: Clock) -> R | None:
    """The result of steps that may be long; None if they need more than one turn."""
    return _take_turn(steps, _CLOCK_INTERVAL, clock)


async def finish(steps: Steps[R], *, are_long: bool = False) -> R:
    """The result of the steps, at once or in turns."""
    clock_interval = 1 if are_long else _CLOCK_INTERVAL
    result = _take_turn(steps, clock_interval, TURNS.get().clock)
    return await _go_on(steps, clock_interval) if result is None else result


async def _go_on(
    steps: Steps[R | Coroutine[Any, Any, R]] | Steps[R], clock_interval: int = _CLOCK_INTERVAL
) -> R:
    turns = TURNS.get()
    result = None
    while result is None:
        await turns.next()
        result = _take_turn(steps, clock_interval, turns.clock)
    if isinstance(result, Coroutine):
        # It waits for something.
        turns.end()
        return cast("R", await result)
    return result


def different(names: Iterable[N], key: Callable[[N], Hashable]) -> list[N]:
    """Without those that have the same key as an earlier one."""
    found: dict[Hashable, N] = {}
    for name in names:
        found.setdefault(key(name), name)
    return list(found.values())


async def turns_of(names: Iterable[N]) -> AsyncIterator[N]:
    """The names; other clients are served after some of them."""
    turns = TURNS.get()
    monotonic = turns.clock.monotonic
    turn_ends = monotonic() + _TURN_SECONDS_MAX
    for name in names:
        yield name
        if monotonic() >= turn_ends:
            await turns.pass_gate()
            turn_ends = monotonic() + _TURN_SECONDS_MAX


async def handle_each(
    names: Sequence[N], handle: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> list[R]:
    """The result of `handle` for each different name; if there are too many, of `refuse`."""
    steps = _handle_each(list(dict.fromkeys(names)), handle, refuse)
    return await finish(steps)


def _handle_each(
    names: Sequence[N], handle: Callable[[N], R], refuse: Callable[[N, RefusedError], R]
) -> Steps[list[R]]:
    try:
        refuse_too_many(len(names))
    except RefusedError as error:
        refusal = error
        handle = lambda name: refuse(name, refusal)  # noqa: E731
    found = []
    for name in names:
        yield
        found.append(handle(name))
    return found


async def query_each(
    names: Sequence[N],
    query: Callable[[N], Coroutine[Any, Any, R]],
    refuse: Callable[[N, RefusedError], R],
) -> list[R]:
    """The result of `query` for each name, also for one that is repeated; if there are too many, of
    `refuse`. All of them wait concurrently."""
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
                await TURNS.get().pass_gate()
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
        log.warning("client request rejected: %s%s", text, more, extra=events.REQUEST_REJECTED())


_rejections: Final = _Rejections()
