"""The clock of queues: the wall clock, but it never goes back."""

from moldau.model.clock import Clock
from moldau.model.ids import TimestampMs


class MonotonicWallClock:
    """While the wall clock is behind the last time returned, time advances at half speed, so that
    leases also expire after the clock was set back."""

    __slots__ = ("_clock", "_last_at", "_last_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = float(clock.wall_ms())
        self._last_at = clock.monotonic()

    def now(self) -> TimestampMs:
        at = self._clock.monotonic()
        slowed_ms = self._last_ms + max(0.0, at - self._last_at) * 500
        self._last_ms = max(float(self._clock.wall_ms()), slowed_ms)
        self._last_at = at
        return TimestampMs(int(self._last_ms))
