"""Owns the watch over the event loop: a turn that takes long holds up everybody, so it is told.

The loop leaves a mark every 50 ms. A thread looks for it, and if it is late, at where the loop is
at work: that is what the warning names. Where the thread itself comes late and little was
calculated meanwhile, the process got no CPU, which is another thing to tell.
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

log = logging.getLogger(__name__)

SLOW_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.05
_TOLD_SECONDS_MIN: Final = 10.0
"""Between two warnings."""
_BUSY_SHARE_MIN: Final = 0.5
"""Who calculated for so much of the time was busy; who did not was kept from it."""


class LoopWatch:
    """Of one loop; call `start` on its thread. Numbers are read at any time."""

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
        self.starved_seconds_total = 0.0
        """Those of them in which the process got no CPU."""
        self._marked_at = now()
        self._marked_cpu = cpu()
        self._place = ""
        self._told_at = -_TOLD_SECONDS_MIN
        self._untold = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)

    def numbers(self) -> SlowLoopTurns:
        return SlowLoopTurns(self.slow_total, self.slow_seconds_total, self.starved_seconds_total)

    def start(self) -> None:
        self._thread_id = threading.get_ident()
        self._marked_at, self._marked_cpu = self._now(), self._cpu()
        self._timer = self._loop.call_later(_LOOK_SECONDS, self.mark)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def mark(self) -> None:
        """The loop has come around."""
        now, cpu = self._now(), self._cpu()
        took = now - self._marked_at - _LOOK_SECONDS
        if took > SLOW_SECONDS:
            self._note(now, took, cpu - self._marked_cpu)
        self._place = ""
        self._marked_at, self._marked_cpu = now, cpu
        if not self._is_over.is_set():
            self._timer = self._loop.call_later(_LOOK_SECONDS, self.mark)

    def _note(self, now: float, took: float, calculated: float) -> None:
        is_busy = calculated >= took * _BUSY_SHARE_MIN
        self.slow_total += 1
        self.slow_seconds_total += took
        if not is_busy:
            self.starved_seconds_total += took
        if now - self._told_at < _TOLD_SECONDS_MIN:
            self._untold += 1
            return
        others = f" ({self._untold} more since the last warning)" if self._untold else ""
        where = f" in {self._place}" if self._place else ""
        if is_busy:
            log.warning(
                "all clients waited for %.2f s: the broker was busy%s%s", took, where, others
            )
        else:
            log.warning(
                "the process stood still for %.2f s: it got no CPU, or waited for the disk%s%s",
                *(took, where, others),
            )
        self._told_at, self._untold = now, 0

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            if self._now() - self._marked_at > SLOW_SECONDS + _LOOK_SECONDS and not self._place:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._place = location_of(frame)


def location_of(frame: FrameType | None) -> str:
    """Where our own code is: what it called is rarely of interest."""
    first = frame
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("moldau.") and module != __name__:
            return f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
        frame = frame.f_back
    if first is None:
        return ""
    return f"{first.f_globals.get('__name__', '?')}.{first.f_code.co_qualname}:{first.f_lineno}"
