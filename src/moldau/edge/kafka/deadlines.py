"""Timeouts of replies that wait for a commit, with one timer for all of them.

Thousands wait at once and hardly any times out, so a timer for each would be expensive. A tick
checks all waiting replies; a timeout is late by two ticks at most.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.net.replies import DeferredReply

Settle = Callable[[ErrorCode], None]

TICK_MS: Final = 100


class Deadlines:
    """The waiting replies of one dispatcher; the timer runs only while there are any."""

    __slots__ = ("_timer", "_waiting", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self._waiting: dict[DeferredReply, tuple[int, Settle]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: DeferredReply, timeout_ms: int, settle: Settle) -> None:
        """Call `settle(REQUEST_TIMED_OUT)` after the timeout, unless it is removed before."""
        # The current tick does not count: it may be about to end.
        self._waiting[reply] = (self.tick + 2 + timeout_ms // TICK_MS, settle)
        if self._timer is None:
            self._start()

    def remove(self, reply: DeferredReply) -> None:
        self._waiting.pop(reply, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_MS / 1000, self._on_tick)

    def _on_tick(self) -> None:
        self._timer = None
        tick = self.tick = self.tick + 1
        late = [item for item in self._waiting.items() if item[1][0] <= tick]
        for reply, (_, settle) in late:
            # A settled reply may have settled others.
            if self._waiting.pop(reply, None) is not None:
                settle(ErrorCode.REQUEST_TIMED_OUT)
        if self._waiting and self._timer is None:
            self._start()
