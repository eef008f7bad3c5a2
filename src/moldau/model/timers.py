"""Deadlines by key, for sans-IO coordinators. Postponing one, as every heartbeat does, is O(1)."""

import heapq
from typing import Final, Generic, TypeVar

_DEAD_MAX: Final = 64
"""So many dead entries do not matter, however few the others are."""
K = TypeVar("K", bound=tuple[object, ...])


class Timers(Generic[K]):
    """Deadlines by key. The heap may hold early or dead entries; `_deadlines` is the truth."""

    __slots__ = ("_deadlines", "_heap", "_heap_deadlines")

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []
        self._heap_deadlines: dict[K, float] = {}
        """The earliest entry of each key in the heap; later ones of the same key are dead."""

    def set(self, key: K, deadline: float) -> None:
        self._deadlines[key] = deadline
        queued = self._heap_deadlines.get(key)
        if queued is None or deadline < queued:
            self._heap_deadlines[key] = deadline
            heapq.heappush(self._heap, (deadline, key))
            self._bound_dead()

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)
        self._bound_dead()

    def deadline(self, key: K) -> float | None:
        return self._deadlines.get(key)

    def next_deadline(self) -> float | None:
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> K | None:
        """Remove and return one timer that is due."""
        self._drop_dead()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._heap_deadlines[key], self._deadlines[key]
        return key

    def _bound_dead(self) -> None:
        """Dead entries are dropped when they would be due, or here, if most entries are dead."""
        if len(self._heap) > 2 * len(self._deadlines) + _DEAD_MAX:
            self._heap = [(deadline, key) for key, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)
            self._heap_deadlines = dict(self._deadlines)

    def _drop_dead(self) -> None:
        """Make the head of the heap a valid deadline."""
        while self._heap:
            queued, key = self._heap[0]
            if self._heap_deadlines.get(key) != queued:
                heapq.heappop(self._heap)
                continue
            deadline = self._deadlines.get(key)
            if deadline == queued:
                return
            heapq.heappop(self._heap)
            del self._heap_deadlines[key]
            if deadline is not None:
                self._heap_deadlines[key] = deadline
                heapq.heappush(self._heap, (deadline, key))
