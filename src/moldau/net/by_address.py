"""Connections by address: at a limit the address with most makes room, and all take turns."""

from typing import Generic, TypeVar

from moldau.net.networks import network_of

C = TypeVar("C")


class ByAddress(Generic[C]):
    """In the order of their arrival."""

    def __init__(self) -> None:
        self._networks: dict[C, str] = {}
        self._by_network: dict[str, dict[C, None]] = {}
        """The order of the networks is that of their turns."""

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, connection: C, host: str) -> None:
        network = self._networks[connection] = network_of(host)
        self._by_network.setdefault(network, {})[connection] = None

    def remove(self, connection: C) -> None:
        """It need not be there."""
        network = self._networks.pop(connection, None)
        if network is not None:
            same = self._by_network[network]
            del same[connection]
            if not same:
                del self._by_network[network]

    def of_same(self, connection: C) -> dict[C, None]:
        """All of its address; the oldest first."""
        return self._by_network[self._networks[connection]]

    def oldest_of_most(self) -> C:
        """The oldest of the address that has most: who sends nothing shuts nobody out."""
        most = max(self._by_network.values(), key=len)
        return next(iter(most))

    def take_next(self) -> C:
        """Remove the oldest of the address whose turn it is; the other addresses are next."""
        network, same = next(iter(self._by_network.items()))
        connection = next(iter(same))
        self.remove(connection)
        if same:
            del self._by_network[network]
            self._by_network[network] = same
        return connection
