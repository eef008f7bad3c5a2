"""The tasks of a broker that run until its stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """If one of them fails, the broker stops."""

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, *works: Coroutine[Any, Any, None]) -> None:
        for work in works:
            task = asyncio.create_task(work)
            self.watch(task)
            self._tasks.append(task)

    def watch(self, task: asyncio.Task[None]) -> None:
        """One that others started, and end."""
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def cancel(self, *others: asyncio.Task[None]) -> None:
        """Returns when all have ended."""
        tasks = (*self._tasks, *others)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
