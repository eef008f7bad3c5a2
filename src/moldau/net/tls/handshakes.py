"""The TLS handshakes in progress of one listener: their number, their time, and their deadline.

At the limit the oldest one is closed, not the newest refused: who holds connections open without a
word shuts nobody out. Steps of handshakes that have to wait for their time are taken address by
address, so that one address delays another by one step only. Clients that have come as far as to
answer the broker take every second turn: not all, since a broker's first answer can be cheap, and
what it has to do next is not.
"""

from asyncio import AbstractEventLoop
from typing import Final, Protocol

from moldau.model.clock import Clock
from moldau.net.by_address import ByAddress
from moldau.net.failure_log import FailureLog
from moldau.net.tls.handshake_turns import HandshakeTurns

HANDSHAKES_MAX: Final = 2048
HANDSHAKES_PER_ADDRESS_MAX: Final = 512


class HalfOpen(Protocol):
    """A connection whose handshake is not complete."""

    address: str

    @property
    def is_answered(self) -> bool:
        """Whether the broker has sent something: the client's next step shows that it is real."""
        ...

    def close(self, reason: str) -> None: ...

    def wait_for_turn(self) -> None:
        """Read nothing until `take_turn` is called."""

    def take_turn(self) -> None: ...


class Handshakes:
    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Clock,
        seconds_max: float,
        failures: FailureLog,
        turns: HandshakeTurns,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._seconds_max = seconds_max
        self._failures = failures
        self._turns = turns
        self._running: dict[HalfOpen, tuple[str, float]] = {}
        """The address and the start of each; the oldest first."""
        self._by_address: ByAddress[HalfOpen] = ByAddress()
        self._first: ByAddress[HalfOpen] = ByAddress()
        """Those that wait for the turn of their first step."""
        self._second: ByAddress[HalfOpen] = ByAddress()
        """The same for their next steps."""
        self._is_firsts_turn = False
        self._is_timed = False

    def __len__(self) -> int:
        return len(self._running)

    def began(self, connection: HalfOpen, host: str) -> None:
        self._running[connection] = (host, self._clock.monotonic())
        self._by_address.add(connection, host)
        same = self._by_address.of_same(connection)
        if len(same) > HANDSHAKES_PER_ADDRESS_MAX:
            limit = f"{HANDSHAKES_PER_ADDRESS_MAX} handshakes per address"
            self._close_oldest(next(iter(same)), limit)
        elif len(self._running) > HANDSHAKES_MAX:
            limit = f"{HANDSHAKES_MAX} handshakes in progress"
            self._close_oldest(self._by_address.oldest_of_most(), limit)
        self._watch()

    def ended(self, connection: HalfOpen) -> None:
        """It is complete, or the connection is closed."""
        if self._running.pop(connection, None) is not None:
            for group in (self._by_address, self._first, self._second):
                group.remove(connection)

    def _close_oldest(self, connection: HalfOpen, limit: str) -> None:
        self._close(connection, f"limit of {limit} reached, and it is the oldest")

    def _close(self, connection: HalfOpen, reason: str) -> None:
        self._failures.warn(connection.address, reason)
        connection.close(reason)

    # ---- time

    def has_turn(self, connection: HalfOpen) -> bool:
        """Whether it may take a step now; otherwise it has to wait, and is called."""
        if not self._first and not self._second and self._turns.is_free():
            return True
        found = self._running.get(connection)
        if found is not None:
            waiting = self._second if connection.is_answered else self._first
            waiting.add(connection, found[0])
            connection.wait_for_turn()
            self._turns.ask(self._give_turn)
        return False

    def took(self, seconds: float) -> None:
        """A step of a handshake took so long."""
        self._turns.took(seconds)

    def _give_turn(self) -> bool:
        """One turn; returns whether more wait."""
        first, second = self._first, self._second
        waiting = (first or second) if self._is_firsts_turn else (second or first)
        self._is_firsts_turn = waiting is second
        if waiting:
            waiting.take_next().take_turn()
        return bool(first or second)

    # ---- deadline

    def _watch(self) -> None:
        """One timer, for the oldest: all have the same deadline."""
        if self._is_timed or not self._running:
            return
        self._is_timed = True
        _, began_at = next(iter(self._running.values()))
        wait = began_at + self._seconds_max - self._clock.monotonic()
        self._loop.call_later(max(0.0, wait), self._close_late)

    def _close_late(self) -> None:
        self._is_timed = False
        now = self._clock.monotonic()
        for connection, (_, began_at) in list(self._running.items()):
            if now - began_at < self._seconds_max:
                break
            self._close(connection, f"no TLS handshake within {self._seconds_max:g} s")
        self._watch()
