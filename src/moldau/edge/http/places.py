"""The places of a listener's connections: at a limit, one that waits makes room for a newcomer.

Who holds connections open without a word shuts nobody out. A newcomer is turned away only if all
others are being answered.
"""

from typing import Generic, TypeVar

from moldau.net.by_address import ByAddress

C = TypeVar("C")


class Places(Generic[C]):
    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._taken: ByAddress[C] = ByAddress()
        self._waiting: ByAddress[C] = ByAddress()
        """Of these, those whose client has to send something; who waits longest is first."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, newcomer: C, host: str) -> C | None:
        """Returns who has lost its place, which may be the newcomer itself."""
        self._taken.add(newcomer, host)
        self._waiting.add(newcomer, host)
        if len(self._taken.of_same(newcomer)) > self._per_address_max:
            loser = next(iter(self._waiting.of_same(newcomer)))
        elif len(self._taken) > self._connections_max:
            loser = self._waiting.oldest_of_most()
        else:
            return None
        self.leave(loser)
        return loser

    def wait(self, connection: C, host: str) -> None:
        """Its client has to send something. It may be known already."""
        self._waiting.add(connection, host)

    def answer(self, connection: C) -> None:
        """It has a whole request, so it keeps its place until the reply is sent."""
        self._waiting.remove(connection)

    def leave(self, connection: C) -> None:
        """It need not be there."""
        self._taken.remove(connection)
        self._waiting.remove(connection)
