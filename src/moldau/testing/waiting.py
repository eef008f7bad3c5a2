"""Waits for conditions in tests, with one timeout that grows with the machine's load.

wait_until(lambda: broker.is_running, "the broker runs")
await until(lambda: link.is_up, "the link is up")

A test says what it waits for, not for how long.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_SECONDS_IDLE: Final = 60.0
_SLOWDOWN_MAX: Final = 4.0
_POLL_SECONDS_MIN: Final = 0.001
_POLL_SECONDS_MAX: Final = 0.1
"""Long waits poll less often, to leave the CPU to the system under test."""


class WaitTimeoutError(AssertionError):
    """A condition that a test waited for timed out."""


def wait_seconds_max() -> float:
    """The current timeout: one minute, and up to four on a loaded machine."""
    return _SECONDS_IDLE * slowdown()


def slowdown() -> float:
    """How much slower the machine is now than when idle: 1 to 4 times."""
    load_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(load_per_core, 1.0), _SLOWDOWN_MAX)


def wait_until(
    holds: Callable[..., T | None],
    what: str,
    *,
    describe: Callable[[], object] = str,
    ignoring: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> T:
    """Call `holds` until it returns a true value, and return that. Raises WaitTimeoutError.

    Errors of a type in `ignoring` count as false. `describe` adds the current state to the error.
    """
    began = time.monotonic()
    pause = _POLL_SECONDS_MIN
    while True:
        is_last = time.monotonic() - began > wait_seconds_max()
        reason = ""
        try:
            if result := holds():
                return result
        except ignoring as error:
            reason = f"last error: {error!r}"
        if is_last:
            raise WaitTimeoutError(_failure(what, describe(), reason))
        time.sleep(pause)
        pause = _longer(pause)


async def until(
    holds: Callable[..., T | None], what: str, *, describe: Callable[[], object] = str
) -> T:
    """The same on an event loop, by its clock."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    pause = _POLL_SECONDS_MIN
    while True:
        is_last = loop.time() - began > wait_seconds_max()
        if result := holds():
            return result
        if is_last:
            raise WaitTimeoutError(_failure(what, describe()))
        await asyncio.sleep(pause)
        pause = _longer(pause)


def _longer(pause: float) -> float:
    return min(pause * 1.2, _POLL_SECONDS_MAX)


def _failure(what: str, *details: object) -> str:
    lines = [f"timed out waiting until {what}", *(str(detail) for detail in details)]
    return "\n".join(line for line in lines if line)
