"""Flushes logs: group commit, off the event loop.

All replicas that were written to in one loop turn are flushed together, in parallel, by workers;
the next flush covers what is appended meanwhile. The hand-off to a worker costs about as much as
the flush of a few kilobytes on a good disk, so a small flush of a single log runs on the loop, as
long as such flushes have proved to be fast. All that is handed over in one turn goes in one call,
and threads that end flushes wake the loop once for all that have ended by then.

A failed flush is never retried: after an error the page cache may mark lost bytes as clean. A flush
that could not begin because the disk is full has lost nothing, and is retried.
"""

import errno
import os
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from moldau.log.interface import FlushTask, PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError, StorageError
from moldau.model.histogram import Histogram
from moldau.replica.flush_threads import FlushWork, FlushWorkers

_INLINE_BYTES_MAX = 64 * 1024
_INLINE_SECONDS_MAX = 0.000_25
_SMOOTHING = 0.2
_DISK_FULL_RETRY_SECONDS = 0.5
_OF_DELETED_FILES: Final = frozenset({None, errno.EBADF, errno.ENOENT})


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


class _HandedFlush:
    """A flush that was handed to the workers."""

    __slots__ = ("_flusher", "failure", "handle", "is_small", "seconds", "started", "task")

    def __init__(
        self, flusher: "Flusher", handle: FlushHandle, task: FlushTask, is_small: bool
    ) -> None:
        self._flusher = flusher
        self.handle = handle
        self.task = task
        self.is_small = is_small
        self.started = flusher.monotonic()
        self.seconds = 0.0
        self.failure: OSError | None = None

    @property
    def descriptor(self) -> int | None:
        return self.task.descriptor

    def __call__(self) -> None:
        # What counts is the disk, not how busy the threads are.
        self.started = self._flusher.monotonic()
        # Report any failure: a broker that stops is better than a log that waits forever.
        self.failure = OSError("internal error during the flush")
        try:
            self.task.run()
            self.failure = None
        except OSError as error:
            self.failure = error
        finally:
            self.seconds = self._flusher.monotonic() - self.started
            self._flusher.ended_in_thread(self)

    def synced(self, error: int) -> None:
        if error:
            self.failure = OSError(error, os.strerror(error))
            self.task.failed(self.failure)
        self.seconds = self._flusher.monotonic() - self.started
        # It took until the loop saw it: this says too little of the disk.
        self.is_small = False
        self._flusher.ended(self)


class Flusher:
    """Flushes many logs by workers, or without any at the end of each loop turn."""

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
        self.monotonic: Final = clock.monotonic
        self._on_failure = on_failure
        self._dirty: list[FlushHandle] = []
        self._scheduled = False
        self._running = 0
        self._small_flush_seconds = float("inf")
        self._small_flush_seconds_seen = False
        self._workers = workers
        self._handed: list[FlushWork] = []
        """Of this turn: handed over at its end."""
        self._ended: deque[_HandedFlush] = deque()
        """In threads; the loop has not seen them yet."""
        self._is_loop_woken = False
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
            if self._handed and self._workers is not None:
                handed, self._handed = self._handed, []
                self._workers.run(handed, self._running)

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
            self._handed.append(_HandedFlush(self, handle, task, small))

    def _run_inline(self, handle: FlushHandle, task: FlushTask) -> None:
        started = self.monotonic()
        try:
            task.run()
        except OSError as error:
            self.report(StorageError(f"flush failed: {error}"))
            return
        seconds = self.monotonic() - started
        self.seconds.add(seconds)
        self._measure(seconds)
        self._finish(handle, task)

    # ---- what workers have ended

    def ended_in_thread(self, flush: _HandedFlush) -> None:
        """Called in a thread. One call of the loop handles all that have ended until it runs."""
        self._ended.append(flush)
        if not self._is_loop_woken:
            self._is_loop_woken = True
            # If the loop is closed, nothing waits for this flush.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_ended)

    def _on_ended(self) -> None:
        # First: what ends from now on may be missed below.
        self._is_loop_woken = False
        ended = self._ended
        try:
            while ended:
                self.ended(ended.popleft())
        finally:
            if ended:
                self._loop.call_soon(self._on_ended)

    def ended(self, flush: _HandedFlush) -> None:
        handle = flush.handle
        self._running -= 1
        handle.busy = False
        if handle.is_dropped:
            # Nobody waits for it, so nothing is acknowledged: not even by a success. But the disk
            # failed, and a log that was opened again on the same files would find them clean.
            if flush.failure is not None and flush.failure.errno not in _OF_DELETED_FILES:
                text = f"flush of a log that was closed meanwhile failed: {flush.failure}"
                self.report(StorageError(text))
            return
        if flush.failure is not None:
            self.report(StorageError(f"flush failed: {flush.failure}"))
            return
        self.seconds.add(flush.seconds)
        if flush.is_small:
            self._measure(flush.seconds)
        try:
            self._finish(handle, flush.task)
        finally:
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
