"""The threads that flush logs: a few, started on demand."""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol


class FlushWork(Protocol):
    """One flush that must not block the event loop."""

    @property
    def descriptor(self) -> int | None:
        """Of the file, if to sync it is all the work, and the kernel may do it by itself."""
        ...

    def __call__(self) -> None:
        """Do all of it, in any thread."""
        ...

    def synced(self, error: int) -> None:
        """Called on the loop instead, when the file is synced: 0, or why it is not (errno)."""
        ...


class FlushWorkers(Protocol):
    """Runs work that must not block the event loop."""

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        """Queue the works of one turn of the loop; they run in parallel.

        `running` counts all that have not ended, including these.
        """
        ...

    def stop(self) -> None:
        """Returns when all queued work is done."""
        ...


class FlushThreads:
    """Threads on a plain queue: the standard library's pool costs as much as a small flush.

    A thread sleeps in its own lock when there is no work, and takes all that it finds before it
    sleeps again.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._works: deque[FlushWork] = deque()
        self._idle: list[threading.Lock] = []
        """Of the threads that sleep, or are about to. Who takes a lock from here releases it."""
        self._is_stopping = False

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        self._works.extend(works)
        for _ in works:
            if not self._wake_one():
                if len(self._threads) >= self._threads_max:
                    return
                thread = threading.Thread(target=self._work, name="moldau-flush", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # The system allows no more threads. Those that run take the work; if there are
                    # none, the caller does it: a log whose flush never ends is never flushed again.
                    if not self._threads:
                        self._run_all()
                    return
                self._threads.append(thread)

    def _wake_one(self) -> bool:
        try:
            self._idle.pop().release()
        except IndexError:
            return False
        return True

    def _run_all(self) -> None:
        with suppress(IndexError):
            while True:
                self._works.popleft()()

    def _work(self) -> None:
        works, idle = self._works, self._idle
        wake = threading.Lock()
        wake.acquire()
        while True:
            self._run_all()
            if self._is_stopping:
                return
            idle.append(wake)
            if (works or self._is_stopping) and self._stays_awake(wake):
                continue
            wake.acquire()

    def _stays_awake(self, wake: threading.Lock) -> bool:
        """Work came in between. False: somebody has woken this thread already."""
        try:
            self._idle.remove(wake)
        except ValueError:
            return False
        return True

    def stop(self) -> None:
        self._is_stopping = True
        while self._wake_one():
            pass
        for thread in self._threads:
            thread.join()
        self._threads.clear()
