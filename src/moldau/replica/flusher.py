"""Flushes logs: group commit, off the event loop.

All replicas that were written to in one loop turn are flushed together, in parallel, by a few
threads; the next flush covers what is appended meanwhile. The hand-off to a thread costs about as
much as the flush of a few kilobytes on a good disk, so a small flush of a single log runs on the
loop, as long as such flushes have proved to be fast.

A failed flush is never retried: after an error the page cache may mark lost bytes as clean. A flush
that could not begin because the disk is full has lost nothing, and is retried.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from moldau.log.interface import FlushTask, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError, StorageError
from moldau.model.histogram import Histogram
from moldau.replica.flush_threads import FlushWorkers

_INLINE_BYTES_MAX = 64 * 1024
_INLINE_SECONDS_MAX = 0.000_25
_SMOOTHING = 0.2
_DISK_FULL_RETRY_SECONDS = 0.5


class FlushHandle:
    """One log's state in the flusher. `on_flushed` runs on the loop after each flush."""

    __slots__ = ("again", "busy", "is_dropped", "log", "on_flushed", "queued", "unflushed_bytes")

    def __init__(self, log: PartitionLog, on_flushed: Callable[[], None]) -> None:
        self.log = log
        self.on_flushed = on_flushed
        self.unflushed_bytes = 0
        self.queued = False
        self.busy = False
        self.again = False
        self.is_dropped = False
        """The log is being deleted: a running flush may fail because its files are deleted."""


class Flusher:
    """Flushes many logs from a few threads, or without threads at the end of each loop turn."""

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
        self.seconds: Final = Histogram()
        """How long each flush took."""

    @property
    def small_flush_seconds(self) -> float | None:
        """Recent duration of a small flush, smoothed; None before the first one."""
        return self._small_flush_seconds if self._small_flush_seconds_seen else None

    def request(self, handle: FlushHandle, appended_bytes: int) -> None:
        """The log was written to; flush it at the end of this loop turn."""
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
            # A callback that raises must not cost other logs their flush.
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
        seconds = self._clock.monotonic() - started
        self.seconds.add(seconds)
        self._measure(seconds)
        self._finish(handle, task)

    def _work(self, handle: FlushHandle, task: FlushTask, small: bool) -> None:
        """Runs in a thread."""
        started = self._clock.monotonic()
        failure: OSError | None = OSError("internal error during the flush")
        try:
            task.run()
            failure = None
        except OSError as error:
            failure = error
        finally:
            # Report any failure: a broker that stops is better than a log that waits forever.
            seconds = self._clock.monotonic() - started
            # If the loop is closed, nothing waits for this flush.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(
                    self._on_worker_done, handle, task, failure, seconds, small
                )

    def _on_worker_done(
        self,
        handle: FlushHandle,
        task: FlushTask,
        failure: OSError | None,
        seconds: float,
        small: bool,
    ) -> None:
        self._running -= 1
        handle.busy = False
        if handle.is_dropped:
            return
        if failure is not None:
            self.report(StorageError(f"flush failed: {failure}"))
            return
        self.seconds.add(seconds)
        if small:
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
            # The flush is valid; only its flush mark could not be written.
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
        """Wraps other writes: a failed disk ends the process, a full disk does not."""
        try:
            yield
        except DiskFullError:
            raise
        except StorageError as error:
            self.report(error)
            raise

    def report(self, error: StorageError) -> None:
        """The disk failed, here or in a write: stop flushing, and let the process end."""
        if not self.failed:
            self.failed = True
            self._on_failure(error)

    def stop(self) -> None:
        """Finish the flushes that were handed to threads, begin no others, and end the threads."""
        self._stopped = True
        if self._workers is not None:
            self._workers.stop()
