"""Owns when and where logs are flushed: group commit, off the event loop.

All replicas that were written to in one turn of the loop are flushed together, in parallel, from
a few threads; what is appended while a flush runs is covered by the next one. The hand-off to a
thread costs about as much as the flush of a few kilobytes on a good disk, so a small flush of a
single log runs at once on the loop, as long as such flushes have proved to be quick.

A failed flush is never retried: after an error the page cache may claim that lost bytes are clean.
A flush that could not begin because the disk is full has lost nothing, and is tried again.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from moldau.log.interface import FlushTask, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError, StorageError
from moldau.replica.flush_threads import FlushWorkers

_INLINE_BYTES_MAX = 64 * 1024
_INLINE_SECONDS_MAX = 0.000_25
_SMOOTHING = 0.2
_DISK_FULL_RETRY_SECONDS = 0.5


class FlushHandle:
    """One log's place in the flusher. `on_flushed` runs on the loop after each flush."""

    __slots__ = ("again", "busy", "is_dropped", "log", "on_flushed", "queued", "unflushed_bytes")

    def __init__(self, log: PartitionLog, on_flushed: Callable[[], None]) -> None:
        self.log = log
        self.on_flushed = on_flushed
        self.unflushed_bytes = 0
        self.queued = False
        self.busy = False
        self.again = False
        self.is_dropped = False
        """The log is being deleted: a flush under way may find its files gone, rightly."""


class Flusher:
    """Flushes many logs from a few threads; without any, at the end of each turn of the loop."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        clock: Clock,
        workers: FlushWorkers | None,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        """Without workers, logs are flushed on the loop."""
        self._loop = loop
        self._clock = clock
        self._on_failure = on_failure
        self._dirty: list[FlushHandle] = []
        self._scheduled = False
        self._running = 0
        self._small_flush_seconds = float("inf")
        self._small_flush_seconds_seen = False
        self._workers = workers
        self._stopped = False
        self.failed = False
        self.flushes_total = 0

    @property
    def small_flush_seconds(self) -> float | None:
        """What a small flush takes lately, smoothed; None before the first one."""
        return self._small_flush_seconds if self._small_flush_seconds_seen else None

    def request(self, handle: FlushHandle, appended_bytes: int) -> None:
        """The log was written to; flush it at the end of this turn of the loop."""
        handle.unflushed_bytes += appended_bytes
        if handle.busy:
            handle.again = True
            return
        if not handle.queued:
            handle.queued = True
            self._dirty.append(handle)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, []
        alone = len(dirty) == 1 and not self._running
        begun = 0
        try:
            for handle in dirty:
                begun += 1
                handle.queued = False
                self._begin(handle, alone)
        finally:
            # A defect in whoever is told of a commit must not cost other logs their flush.
            for handle in dirty[begun:]:
                handle.queued = False
                self.request(handle, 0)

    def _begin(self, handle: FlushHandle, alone: bool) -> None:
        if self.failed or self._stopped or handle.is_dropped:
            return
        try:
            task = handle.log.begin_flush()
        except DiskFullError:
            self._loop.call_later(_DISK_FULL_RETRY_SECONDS, self.request, handle, 0)
            return
        except StorageError as error:
            self.report(error)
            return
        if task is None:
            handle.on_flushed()
            return
        small = handle.unflushed_bytes <= _INLINE_BYTES_MAX
        handle.unflushed_bytes = 0
        quick = self._small_flush_seconds <= _INLINE_SECONDS_MAX
        is_light = alone and small and quick and not task.is_heavy
        if is_light or self._workers is None:
            self._run_inline(handle, task)
        else:
            handle.busy = True
            self._running += 1
            self._workers.run(partial(self._work, handle, task, small), self._running)

    def _run_inline(self, handle: FlushHandle, task: FlushTask) -> None:
        started = self._clock.monotonic()
        try:
            task.run()
        except OSError as error:
            self.report(StorageError(f"flush failed: {error}"))
            return
        self._measure(self._clock.monotonic() - started)
        self._finish(handle, task)

    def _work(self, handle: FlushHandle, task: FlushTask, small: bool) -> None:
        """In a thread."""
        started = self._clock.monotonic()
        failure: OSError | None = OSError("a defect ended the flush")
        try:
            task.run()
            failure = None
        except OSError as error:
            failure = error
        finally:
            # Whatever happened: a broker that ends is better than a log that waits for ever.
            seconds = self._clock.monotonic() - started
            # Without a loop there is nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(
                    self._handed_back, handle, task, failure, seconds if small else None
                )

    def _handed_back(
        self, handle: FlushHandle, task: FlushTask, failure: OSError | None, seconds: float | None
    ) -> None:
        self._running -= 1
        handle.busy = False
        if handle.is_dropped:
            return
        if failure is not None:
            self.report(StorageError(f"flush failed: {failure}"))
            return
        if seconds is not None:
            self._measure(seconds)
        self._finish(handle, task)
        if handle.again:
            handle.again = False
            self.request(handle, 0)

    def _finish(self, handle: FlushHandle, task: FlushTask) -> None:
        self.flushes_total += 1
        try:
            handle.log.end_flush(task)
        except DiskFullError:
            # The flush counts; there was no room for the note that says so.
            pass
        except StorageError as error:
            self.report(error)
            return
        handle.on_flushed()

    def _measure(self, seconds: float) -> None:
        if not self._small_flush_seconds_seen:
            self._small_flush_seconds_seen = True
            self._small_flush_seconds = seconds
        else:
            self._small_flush_seconds += _SMOOTHING * (seconds - self._small_flush_seconds)

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Around whatever else writes: a disk that failed ends the process, a full one does not."""
        try:
            yield
        except DiskFullError:
            raise
        except StorageError as error:
            self.report(error)
            raise

    def report(self, error: StorageError) -> None:
        """The disk failed, here or in a write: flush nothing any more, and let the process end."""
        if not self.failed:
            self.failed = True
            self._on_failure(error)

    def stop(self) -> None:
        """End the threads; flushes already handed off are finished first, later ones not begun."""
        self._stopped = True
        if self._workers is not None:
            self._workers.stop()
