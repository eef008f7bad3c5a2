"""Virtual time: what happens next, in all processes of a simulated world.

Time jumps from one event to the next. Two kinds of events: a turn of a process's event loop, and
anything else that was asked for at a time (a byte arrives, a flush ends, a fault begins). What is
due at the same time is done in the order in which it was asked for, so a run depends on nothing but
the seed.
"""

import heapq
from collections.abc import Callable
from typing import Final

START: Final = 1_000.0
"""Of virtual time, in seconds: no deadline is below zero."""

WALL_MS: Final = 1_700_000_000_000
"""What wall clocks add to it."""


class Turns:
    """Somebody who is to be run at a time, and may change its mind. See SimLoop."""

    __slots__ = ("turn_at",)

    def __init__(self) -> None:
        self.turn_at: float | None = None

    def run_turn(self) -> None:
        raise NotImplementedError


class Scheduler:
    """The heap of events."""

    def __init__(self) -> None:
        self.now = START
        self.events = 0
        self._asked = 0
        self._heap: list[tuple[float, int, Turns | Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do it then; there is no way to take it back."""
        self._asked += 1
        heapq.heappush(self._heap, (max(time, self.now), self._asked, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def turn(self, who: Turns, time: float) -> None:
        """Give it a turn then, unless it has an earlier one."""
        if who.turn_at is not None and who.turn_at <= time:
            return
        time = max(time, self.now)
        who.turn_at = time
        self._asked += 1
        heapq.heappush(self._heap, (time, self._asked, who))

    def step(self) -> bool:
        """The next event; False: nothing will ever happen again."""
        heap = self._heap
        while heap:
            time, _, what = heapq.heappop(heap)
            if isinstance(what, Turns):
                if what.turn_at != time:
                    # It was moved to an earlier time, or given up.
                    continue
                what.turn_at = None
                self.now = time
                self.events += 1
                what.run_turn()
            else:
                self.now = time
                self.events += 1
                what()
            return True
        return False

    @property
    def next_at(self) -> float | None:
        """When something may happen next."""
        return self._heap[0][0] if self._heap else None
