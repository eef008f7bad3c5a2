"""What clients did and saw, in the words of faults/checker.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sim.scheduler import START, Scheduler


class History:
    """Of one world."""

    def __init__(self, scheduler: Scheduler, path: Path | None = None) -> None:
        """In memory, or in a file: that of a week would hide whether the brokers' memory grows."""
        self._scheduler = scheduler
        self._events: list[dict[str, Any]] = []
        self._path = path
        self._file = path.open("wb") if path is not None else None

    def now(self) -> int:
        """Microseconds: two events of one client never have the same time by rounding."""
        return int((self._scheduler.now - START) * 1e6)

    def add(self, op: str, **fields: Any) -> None:
        event = {"op": op, "at": self.now(), **fields}
        if self._file is None:
            self._events.append(event)
        else:
            self._file.write(msgspec.json.encode(event) + b"\n")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._path is None or self._file is None:
            yield from self._events
            return
        self._file.flush()
        with self._path.open("rb") as lines:
            yield from map(msgspec.json.decode, lines)
