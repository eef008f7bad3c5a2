"""Owns what clients did and saw, in the words of faults/checker.py."""

from collections.abc import Iterator
from typing import Any

from sim.scheduler import START, Scheduler


class History:
    """Of one world."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.events: list[dict[str, Any]] = []

    def now(self) -> int:
        """Microseconds: two events of one client never have the same time by rounding."""
        return int((self._scheduler.now - START) * 1e6)

    def add(self, op: str, **fields: Any) -> None:
        self.events.append({"op": op, "at": self.now(), **fields})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.events)
