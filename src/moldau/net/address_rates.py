"""Bounds how often one address connects: a token bucket per address."""

from typing import Final

from moldau.model.clock import Clock
from moldau.net.networks import network_of

_BURST_SECONDS: Final = 2.0
"""An address that was quiet may open the connections of this long at once."""
_ADDRESSES_MAX: Final = 4096


class AddressRates:
    def __init__(self, per_second_max: float, clock: Clock) -> None:
        self.per_second_max = per_second_max
        self._clock = clock
        self._full = max(1.0, per_second_max * _BURST_SECONDS)
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens, and when they were counted; the least recent first."""

    def allows(self, host: str) -> bool:
        """Whether one more connection is within the rate; counts it then."""
        network, now = network_of(host), self._clock.monotonic()
        tokens, counted_at = self._buckets.pop(network, (self._full, now))
        tokens = min(self._full, tokens + (now - counted_at) * self.per_second_max)
        is_allowed = tokens >= 1
        self._buckets[network] = (tokens - 1 if is_allowed else tokens, now)
        if len(self._buckets) > _ADDRESSES_MAX:
            # The least recent has had the longest time to fill up again.
            del self._buckets[next(iter(self._buckets))]
        return is_allowed
