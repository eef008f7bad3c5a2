"""Owns the work on many partitions within one request: each has an outcome, all share a deadline.

What is not done by then is answered as timed out, and goes on: a command that is on its way into
the metadata log cannot be called back, and clients look before they ask again. Services bound the
time of what they do themselves.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 300_000
"""Longer than any client waits for a reply."""
_AT_ONCE_MAX: Final = 64
"""Bounds what one request puts into the queue of the metadata group."""

_late_tasks: set["asyncio.Task[RefusedError | None]"] = set()
"""The loop itself does not keep tasks alive."""


async def outcomes(
    works: Iterable[Coroutine[Any, Any, None]], timeout_ms: int
) -> list[RefusedError | None]:
    """Run all works, and say of each, in order, why it was refused; None if it was not."""
    slots = asyncio.Semaphore(_AT_ONCE_MAX)
    is_late = asyncio.Event()
    tasks = [asyncio.ensure_future(_outcome(work, slots, is_late)) for work in works]
    if not tasks:
        return []
    wait_ms = max(0, min(timeout_ms, WAIT_MS_MAX))
    try:
        await asyncio.wait(tasks, timeout=wait_ms / 1000)
    except asyncio.CancelledError:
        # The broker stops.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    is_late.set()
    refusal = RefusedError(ErrorCode.REQUEST_TIMED_OUT, f"Not done within {wait_ms} ms")
    for task in tasks:
        if not task.done():
            _late_tasks.add(task)
            task.add_done_callback(_forget)
    return [task.result() if task.done() else refusal for task in tasks]


async def _outcome(
    work: Coroutine[Any, Any, None], slots: asyncio.Semaphore, is_late: asyncio.Event
) -> RefusedError | None:
    try:
        async with slots:
            if not is_late.is_set():
                await work
    except RefusedError as error:
        return error
    finally:
        # One whose turn never came would complain that nobody awaited it.
        work.close()
    return None


def _forget(task: "asyncio.Task[RefusedError | None]") -> None:
    _late_tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("what was still to be done after its answer failed", exc_info=error)
