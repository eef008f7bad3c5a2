"""Owns the time that queues go by: the wall clock's, but it never goes back."""

from moldau.model.clock import Clock
from moldau.model.ids import TimestampMs


class MonotonicWallClock:
    """While the wall clock is behind what was told already, time goes on at half its pace: leases
    must come to their end also when a clock was set back."""

    __slots__ = ("_at", "_clock", "_told")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = float(clock.wall_ms())
        self._at = clock.monotonic()

    def now(self) -> TimestampMs:
        at = self._clock.monotonic()
        slowly = self._told + max(0.0, at - self._at) * 500
        self._told = max(float(self._clock.wall_ms()), slowly)
        self._at = at
        return TimestampMs(int(self._told))
