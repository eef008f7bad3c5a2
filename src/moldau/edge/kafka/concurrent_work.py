"""Owns the work on many partitions within one request: each has an outcome, all share a deadline.

What is not done by then is answered as timed out. What was begun goes on: a command that is on its
way into the metadata log cannot be called back, and clients look before they ask again. Services
bound the time of what they do themselves.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 300_000
"""Longer than any client waits for a reply."""
_AT_ONCE_MAX: Final = 64
"""Bounds what one request puts into the queue of the metadata group."""

T = TypeVar("T")

_late_tasks: set["asyncio.Task[None]"] = set()
"""The loop itself does not keep tasks alive."""


async def run_each(
    work: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T], timeout_ms: int
) -> list[RefusedError | None]:
    """Do the work for each item, and say of each why it was refused; None if it was not."""
    wait_ms = max(0, min(timeout_ms, WAIT_MS_MAX))
    late = RefusedError(ErrorCode.REQUEST_TIMED_OUT, f"Not done within {wait_ms} ms")
    found: list[RefusedError | None] = [late] * len(items)
    left = iter(range(len(items)))
    workers = [
        asyncio.ensure_future(_work_off(work, items, left, found))
        for _ in range(min(len(items), _AT_ONCE_MAX))
    ]
    if not workers:
        return found
    try:
        done, pending = await asyncio.wait(workers, timeout=wait_ms / 1000)
    except asyncio.CancelledError:
        # The broker stops.
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    # Whoever is late begins nothing new.
    deque(left, maxlen=0)
    for worker in pending:
        _late_tasks.add(worker)
        worker.add_done_callback(_forget)
    for worker in done:
        worker.result()
    return list(found)


async def _work_off(
    work: Callable[[T], Coroutine[Any, Any, None]],
    items: Sequence[T],
    left: Iterator[int],
    found: list[RefusedError | None],
) -> None:
    for number in left:
        try:
            await work(items[number])
            found[number] = None
        except RefusedError as error:
            found[number] = error
        # A refusal waits for nothing, so without this a long list would hold up everybody.
        await asyncio.sleep(0)


def _forget(task: "asyncio.Task[None]") -> None:
    _late_tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("what was still to be done after its answer failed", exc_info=error)
