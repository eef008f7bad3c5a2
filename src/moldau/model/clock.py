"""Owns the ports for time: everything below server/ takes a Clock, nothing reads the time."""

from typing import Protocol

from moldau.model.ids import TimestampMs


class Clock(Protocol):
    """Wall time for timestamps that users see, monotonic time for deadlines."""

    def wall_ms(self) -> TimestampMs: ...

    def monotonic(self) -> float: ...
