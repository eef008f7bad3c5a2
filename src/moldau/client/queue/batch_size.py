"""Owns how many messages a loop over a worker takes at a time: those it can do within their lease.

Taken too many, the last ones would be delivered to others before their turn comes. Taken one by
one, each would cost a call.
"""

import time
from typing import Final

COUNT_MAX: Final = 100
_GROWTH: Final = 4
_LEASE_SHARE: Final = 0.25
"""Of a lease that a batch may take by the speed of the last one: speeds change."""


class BatchSizer:
    """Begins with one message, and learns from how long they take."""

    def __init__(self) -> None:
        self.count = 1
        self._began = 0.0
        self._taken = 0

    def taken(self, count: int) -> None:
        """A batch is handed out."""
        self._began = time.monotonic()
        self._taken = count

    def done(self, visibility_seconds: float) -> None:
        """The batch is done; `visibility_seconds` 0: messages have no lease."""
        if not self._taken:
            return
        if not visibility_seconds:
            self.count = COUNT_MAX
            return
        seconds = max(1e-6, (time.monotonic() - self._began) / self._taken)
        fitting = int(visibility_seconds * _LEASE_SHARE / seconds)
        self.count = max(1, min(COUNT_MAX, self.count * _GROWTH, fitting))
