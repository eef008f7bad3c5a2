"""A quota of a broker that is none: who calls for the first time has to wait."""

import time
from collections import Counter
from math import ceil


class QuotaWaits:
    """By the name of the call; counts those that came too early."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """How long the first call has to wait."""
        self.early: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def refused(self, name: str) -> bool:
        """Whether a call had to wait."""
        return name in self._until

    def left_ms(self, name: str) -> int:
        """How long a call has to wait; 0: not at all."""
        if name not in self.seconds:
            return 0
        now, is_first = time.monotonic(), name not in self._until
        left = self._until.setdefault(name, now + self.seconds[name]) - now
        if left <= 0:
            return 0
        self.early[name] += not is_first
        return ceil(left * 1000)
