"""Bounds the connections of one address: how many at a time, and how many new ones per second."""

from collections import Counter

from moldau.net.address_rates import AddressRates
from moldau.net.networks import network_of


class AddressLimits:
    """Of one listener."""

    def __init__(
        self, at_once_max: int, rates: AddressRates | None = None, *, what: str = "connections"
    ) -> None:
        self._what = what
        self.at_once_max = at_once_max
        self._rates = rates
        self._open: Counter[str] = Counter()

    def refusal(self, host: str) -> str:
        """Why one more connection is refused; empty if it may come, and it counts for the rate."""
        if self._open[network_of(host)] >= self.at_once_max:
            return f"limit of {self.at_once_max} {self._what} per address reached"
        if self._rates is not None and not self._rates.allows(host):
            return f"limit of {self._rates.per_second_max:g} {self._what} per second reached"
        return ""

    def opened(self, host: str) -> None:
        self._open[network_of(host)] += 1

    def closed(self, host: str) -> None:
        network = network_of(host)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]
