"""How many messages a loop over a worker polls at a time: as many as it can do within their lease.

With too many, the leases of the last ones would expire before their turn. With one at a time, each
message would cost a call.
"""

import time
from typing import Final

COUNT_MAX: Final = 100
_GROWTH: Final = 4
_LEASE_SHARE: Final = 0.25
"""The share of a lease that a batch may take, at the speed of the last one."""


class BatchSizer:
    """Starts with one message, and adapts to how long they take."""

    def __init__(self) -> None:
        self.count = 1
        self._began = 0.0
        self._taken = 0

    def taken(self, count: int) -> None:
        """A batch was polled."""
        self._began = time.monotonic()
        self._taken = count

    def done(self, visibility_seconds: float) -> None:
        """The batch is done. `visibility_seconds` 0: messages have no lease."""
        if not self._taken:
            return
        if not visibility_seconds:
            self.count = COUNT_MAX
            return
        seconds = max(1e-6, (time.monotonic() - self._began) / self._taken)
        fitting = int(visibility_seconds * _LEASE_SHARE / seconds)
        self.count = max(1, min(COUNT_MAX, self.count * _GROWTH, fitting))
