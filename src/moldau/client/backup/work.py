"""What all backup commands share: workers for partitions, their rate, and their progress."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

PARALLEL_DEFAULT: Final = 4


class Cancelled(Exception):
    """Another worker failed, or the command was interrupted."""


class Pace:
    """Of all workers together: at most so many bytes per second, and how far they are."""

    def __init__(
        self, bytes_per_second: float = 0.0, on_progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """0: without a limit. `on_progress` gets the number of offsets that are done."""
        self._rate = bytes_per_second
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._free_at = 0.0
        self.bytes = 0
        self.offsets = 0

    def add(self, size: int, offsets: int) -> None:
        """Wait as long as the rate requires. Raises Cancelled."""
        wait_seconds = 0.0
        with self._lock:
            self.bytes += size
            self.offsets += offsets
            self._on_progress(self.offsets)
            if self._rate:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + size / self._rate
                wait_seconds = self._free_at - now
        if self._cancelled.wait(wait_seconds) if wait_seconds else self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        self._cancelled.set()


def run_all(work: Callable[[T], R], items: Sequence[T], parallel: int, pace: Pace) -> list[R]:
    """The results in order; the first error ends all of them."""
    with ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        futures: list[Future[R]] = [pool.submit(work, item) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            pace.cancel()
            pool.shutdown(cancel_futures=True)
            raise
        errors = [error for each in done if (error := each.exception()) is not None]
        if errors:
            pace.cancel()
            pool.shutdown(cancel_futures=True)
            raise next((each for each in errors if not isinstance(each, Cancelled)), errors[0])
        return [future.result() for future in futures]
