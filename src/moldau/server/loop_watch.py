"""Watches the event loop, and logs turns that are so slow that all clients wait.

A timer on the loop sets a mark every 50 ms. If the mark is late, a thread captures where the loop
is executing, for the warning. If the process used little CPU meanwhile, it was starved of CPU or
blocked on I/O, and the warning says that instead.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from moldau.api.metric_sources import SlowLoopTurns
from moldau.model import log_events as events
from moldau.model.histogram import Histogram

log = logging.getLogger(__name__)

SLOW_SECONDS: Final = 0.1
_CHECK_SECONDS: Final = 0.05
_WARN_SECONDS_MIN: Final = 10.0
"""Between two warnings."""
_BUSY_SHARE_MIN: Final = 0.5
"""The process was busy if it used the CPU for at least this share of the time."""


class LoopWatch:
    """Watches one loop; call `start` on its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._loop = loop
        self._now = now
        self._cpu = cpu
        self.slow_total = 0
        """Turns that took longer than SLOW_SECONDS."""
        self.slow_seconds_total = 0.0
        self.delay = Histogram()
        """How late the mark was, each time: a turn of the loop that takes long delays it."""
        self.starved_seconds_total = 0.0
        """The part in which the process was starved of CPU or blocked on I/O."""
        self._marked_at = now()
        self._marked_cpu = cpu()
        self._location = ""
        self._warned_at = -_WARN_SECONDS_MIN
        self._suppressed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    def numbers(self) -> SlowLoopTurns:
        return SlowLoopTurns(
            self.slow_total, self.slow_seconds_total, self.starved_seconds_total, self.delay
        )

    def start(self) -> None:
        self._thread_id = threading.get_ident()
        self._marked_at, self._marked_cpu = self._now(), self._cpu()
        self._timer = self._loop.call_later(_CHECK_SECONDS, self.mark)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def mark(self) -> None:
        """Called on the loop: it is responsive."""
        now, cpu = self._now(), self._cpu()
        took = now - self._marked_at - _CHECK_SECONDS
        # Timers of uvloop have milliseconds, and may be early by one.
        self.delay.add(max(0.0, took))
        if took > SLOW_SECONDS:
            self._note(now, took, cpu - self._marked_cpu)
        self._location = ""
        self._marked_at, self._marked_cpu = now, cpu
        if not self._is_over.is_set():
            self._timer = self._loop.call_later(_CHECK_SECONDS, self.mark)

    def _note(self, now: float, took: float, calculated: float) -> None:
        is_busy = calculated >= took * _BUSY_SHARE_MIN
        self.slow_total += 1
        self.slow_seconds_total += took
        if not is_busy:
            self.starved_seconds_total += took
        if now - self._warned_at < _WARN_SECONDS_MIN:
            self._suppressed += 1
            return
        others = f" ({self._suppressed} more since the last warning)" if self._suppressed else ""
        where = f" in {self._location}" if self._location else ""
        if is_busy:
            log.warning(
                "event loop blocked for %.2f s: the broker was busy%s%s",
                took,
                where,
                others,
                extra=events.LOOP_BLOCKED(seconds=took),
            )
        else:
            log.warning(
                "process stalled for %.2f s: it got no CPU, or waited for the disk%s%s",
                *(took, where, others),
                extra=events.PROCESS_STALLED(seconds=took),
            )
        self._warned_at, self._suppressed = now, 0

    def _watch(self) -> None:
        while not self._is_over.wait(_CHECK_SECONDS):
            if self._now() - self._marked_at > SLOW_SECONDS + _CHECK_SECONDS and not self._location:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._location = location_of(frame)


def location_of(frame: FrameType | None) -> str:
    """The innermost frame of our own code."""
    first = frame
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("moldau.") and module != __name__:
            return f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
        frame = frame.f_back
    if first is None:
        return ""
    return f"{first.f_globals.get('__name__', '?')}.{first.f_code.co_qualname}:{first.f_lineno}"
