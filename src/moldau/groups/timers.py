"""Owns the deadlines of the coordinator. Moving one later, which every heartbeat does, is O(1)."""

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    SESSION = 1
    """A member must be heard of."""
    PENDING = 2
    """A member that was given its id must join with it."""
    JOIN = 3
    """The join phase of a rebalance ends."""
    SYNC = 4
    """Every member must have synced."""
    EXPIRY = 5
    """Old offsets are looked for."""
    REVOKE = 6
    """A member of a consumer group must have let go of partitions, or have joined again."""
    DOWNGRADE = 7
    """A group of classic members whose broker assigns tries again to become a classic one."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Timers:
    """Deadlines by key. The heap may hold early or dead entries; `_deadlines` is the truth."""

    __slots__ = ("_deadlines", "_heap", "_heap_deadlines")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, TimerKey]] = []
        self._heap_deadlines: dict[TimerKey, float] = {}
        """The earliest entry of each key in the heap; later ones of the same key are dead."""

    def set(self, key: TimerKey, deadline: float) -> None:
        self._deadlines[key] = deadline
        queued = self._heap_deadlines.get(key)
        if queued is None or deadline < queued:
            self._heap_deadlines[key] = deadline
            heapq.heappush(self._heap, (deadline, key))

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def deadline(self, key: TimerKey) -> float | None:
        return self._deadlines.get(key)

    def keys(self) -> list[TimerKey]:
        return list(self._deadlines)

    def next_deadline(self) -> float | None:
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> TimerKey | None:
        """Removes and returns one timer that is due."""
        self._drop_dead()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._heap_deadlines[key], self._deadlines[key]
        return key

    def _drop_dead(self) -> None:
        """Makes the head of the heap a true deadline."""
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
