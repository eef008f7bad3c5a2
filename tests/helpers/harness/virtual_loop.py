"""An event loop in virtual time, for pure tests: nothing waits, and the same happens every time.

Time stands still while anything can run, and jumps to the next timer when nothing can. There are
no sockets. What is handed to an executor runs on the loop, in a turn of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(AssertionError):
    """Everything waits, and no timer will ever wake anything."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 1_000.0
        self._selector = self

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """What a selector does: wait for a timer. No file is ever ready."""
        if timeout is None:
            raise StuckError("every task waits for another one, and no timer is set")
        self._now += max(timeout, 0.0)
        return []

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_soon(self._run, future, func, args)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def _run(self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        if future.cancelled():
            return
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)

    def _process_events(self, event_list: list[Any]) -> None:
        pass


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
