"""The threads that flush logs: a few, started on demand."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

FlushWork = Callable[[], None]


class FlushWorkers(Protocol):
    """Runs work that must not block the event loop."""

    def run(self, work: FlushWork, running: int) -> None:
        """Queue the work; `running` counts unfinished work, including this one."""
        ...

    def stop(self) -> None:
        """Returns when all queued work is done."""
        ...


class FlushThreads:
    """Threads on a plain queue: the standard library's pool costs as much as a small flush."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[FlushWork | None] = SimpleQueue()

    def run(self, work: FlushWork, running: int) -> None:
        if running > len(self._threads) and len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._work, name="moldau-flush", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(work)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
