"""Runs the work of one request on many partitions concurrently, with one deadline for all.

Items that are not done by then are reported as timed out. Work that was started continues: a
command on its way into the metadata log cannot be cancelled. The services have their own timeouts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from moldau.api.quotas import charged
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 300_000
"""Longer than any client waits for a reply."""
_AT_ONCE_MAX: Final = 64
"""Limits what one request puts into the queue of the metadata group."""

T = TypeVar("T")

_late_tasks: set["asyncio.Task[None]"] = set()
"""Referenced here, because the event loop does not keep tasks alive."""


async def run_each(
    work: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T], timeout_ms: int
) -> list[RefusedError | None]:
    """Runs `work` for each item; returns the error of each, None if it succeeded."""
    wait_ms = max(0, min(timeout_ms, WAIT_MS_MAX))
    late = RefusedError(ErrorCode.REQUEST_TIMED_OUT, f"Timed out after {wait_ms} ms")
    found: list[RefusedError | None] = [late] * len(items)
    left = iter(range(len(items)))
    workers = [
        asyncio.create_task(charged(_work_off(work, items, left, found)))
        for _ in range(min(len(items), _AT_ONCE_MAX))
    ]
    if not workers:
        return found
    try:
        done, pending = await asyncio.wait(workers, timeout=wait_ms / 1000)
    except asyncio.CancelledError:
        # The broker is stopping.
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    # Late workers start no further item.
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
        # A rejection does not await anything: without this, a long list would block the loop.
        await asyncio.sleep(0)


def _forget(task: "asyncio.Task[None]") -> None:
    _late_tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error(
            "internal error in work that continued after its response",
            exc_info=error,
            extra=events.INTERNAL_ERROR(),
        )
