"""Owns the deadlines of the coordinator."""

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    TIMEOUT = 1
    """A transaction has been open for too long."""
    RETRY = 2
    """Markers, or a write that nobody waits for, are tried again."""
    BUSY = 3
    """A request has waited for the end of a transaction long enough."""
    EXPIRY = 4
    """Ids that nobody uses any more are looked for."""


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""
    request_id: int = 0


class Timers:
    """Deadlines by key. The heap may hold entries that are dead; `_deadlines` is the truth."""

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, TimerKey]] = []

    def set(self, key: TimerKey, deadline: float) -> None:
        if self._deadlines.get(key) != deadline:
            self._deadlines[key] = deadline
            heapq.heappush(self._heap, (deadline, key))

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def deadline(self, key: TimerKey) -> float | None:
        return self._deadlines.get(key)

    def next_deadline(self) -> float | None:
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> TimerKey | None:
        """Removes and returns one timer that is due."""
        self._drop_dead()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        return key

    def _drop_dead(self) -> None:
        heap, deadlines = self._heap, self._deadlines
        while heap and deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > 64 and len(heap) > 4 * len(deadlines):
            # Transactions end long before their timeout: what they leave must not pile up.
            heap[:] = [(deadline, key) for key, deadline in deadlines.items()]
            heapq.heapify(heap)
