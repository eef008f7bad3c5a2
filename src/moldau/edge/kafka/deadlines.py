"""Owns the time limits of replies that wait for a commit: one timer for all of them.

Thousands wait at once and hardly one is ever late, so that a timer each would cost more than what
it guards. A tick looks at all that wait; a reply is late by a tick or two at most.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.net.connection import DeferredReply

Settle = Callable[[ErrorCode], None]

TICK_MS: Final = 100


class Deadlines:
    """The replies of one dispatcher that wait; the timer runs only while there are any."""

    __slots__ = ("_timer", "_waiting", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self._waiting: dict[DeferredReply, tuple[int, Settle]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_ticking(self) -> bool:
        return self._timer is not None

    def add(self, reply: DeferredReply, timeout_ms: int, settle: Settle) -> None:
        """Call `settle(REQUEST_TIMED_OUT)` once this long has passed, unless it is removed."""
        # The tick under way does not count: it may be about to end.
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
        self._timer = loop.call_later(TICK_MS / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        tick = self.tick = self.tick + 1
        late = [item for item in self._waiting.items() if item[1][0] <= tick]
        for reply, (_, settle) in late:
            # One that is late may have answered others with it.
            if self._waiting.pop(reply, None) is not None:
                settle(ErrorCode.REQUEST_TIMED_OUT)
        if self._waiting and self._timer is None:
            self._start()
