"""The clock interface. Code below server/ gets a Clock and does not read the time itself."""

from typing import Protocol

from moldau.model.ids import TimestampMs


class Clock(Protocol):
    """Wall time for timestamps that users see, monotonic time for deadlines."""

    def wall_ms(self) -> TimestampMs: ...

    def monotonic(self) -> float: ...
