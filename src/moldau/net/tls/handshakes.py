"""The TLS handshakes in progress of one listener: their number, their time, and their deadline.

At the limit the oldest one is closed, not the newest refused: who holds connections open without a
word shuts nobody out. Steps of handshakes that have to wait for their time are taken address by
address, so that one address delays another by one step only.
"""

from asyncio import AbstractEventLoop, TimerHandle
from typing import Final, Protocol

from moldau.model.clock import Clock
from moldau.net.failure_log import FailureLog
from moldau.net.tls.handshake_time import HandshakeTime

HANDSHAKES_MAX: Final = 2048
HANDSHAKES_PER_ADDRESS_MAX: Final = 512


class HalfOpen(Protocol):
    """A connection whose handshake is not complete."""

    address: str

    def close(self, reason: str) -> None: ...

    def wait_for_turn(self) -> None:
        """Read nothing until `take_turn` is called."""

    def take_turn(self) -> None: ...


class Handshakes:
    def __init__(
        self, loop: AbstractEventLoop, clock: Clock, seconds_max: float, failures: FailureLog
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._seconds_max = seconds_max
        self._failures = failures
        self._time = HandshakeTime(clock)
        self._running: dict[HalfOpen, tuple[str, float]] = {}
        """The address and the start of each; the oldest first."""
        self._by_address: dict[str, dict[HalfOpen, None]] = {}
        self._waiting: dict[str, dict[HalfOpen, None]] = {}
        """Those that wait for their turn, by address; both in the order of their turns."""
        self._turn: TimerHandle | None = None
        self._is_timed = False

    def __len__(self) -> int:
        return len(self._running)

    def began(self, connection: HalfOpen, host: str) -> None:
        self._running[connection] = (host, self._clock.monotonic())
        same = self._by_address.setdefault(host, {})
        same[connection] = None
        if len(same) > HANDSHAKES_PER_ADDRESS_MAX:
            self._close_oldest(same, f"{HANDSHAKES_PER_ADDRESS_MAX} handshakes per address")
        elif len(self._running) > HANDSHAKES_MAX:
            most = max(self._by_address.values(), key=len)
            self._close_oldest(most, f"{HANDSHAKES_MAX} handshakes in progress")
        self._watch()

    def ended(self, connection: HalfOpen) -> None:
        """It is complete, or the connection is closed."""
        found = self._running.pop(connection, None)
        if found is not None:
            _remove(self._by_address, found[0], connection)
            _remove(self._waiting, found[0], connection)

    def _close_oldest(self, connections: dict[HalfOpen, None], limit: str) -> None:
        self._close(next(iter(connections)), f"limit of {limit} reached, and it is the oldest")

    def _close(self, connection: HalfOpen, reason: str) -> None:
        self._failures.warn(connection.address, reason)
        connection.close(reason)

    # ---- time

    def has_turn(self, connection: HalfOpen) -> bool:
        """Whether it may take a step now; otherwise it has to wait, and is called."""
        if not self._waiting and not self._time.wait_seconds():
            return True
        found = self._running.get(connection)
        if found is not None:
            self._waiting.setdefault(found[0], {})[connection] = None
            connection.wait_for_turn()
            self._await_turn()
        return False

    def took(self, seconds: float) -> None:
        """A step of a handshake took so long."""
        self._time.took(seconds)

    def _await_turn(self) -> None:
        if self._turn is None and self._waiting:
            self._turn = self._loop.call_later(self._time.wait_seconds(), self._give_turns)

    def _give_turns(self) -> None:
        self._turn = None
        while self._waiting and not self._time.wait_seconds():
            host = next(iter(self._waiting))
            same = self._waiting.pop(host)
            connection = next(iter(same))
            del same[connection]
            if same:
                # Behind the other addresses.
                self._waiting[host] = same
            connection.take_turn()
        self._await_turn()

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


def _remove(by_address: dict[str, dict[HalfOpen, None]], host: str, connection: HalfOpen) -> None:
    same = by_address.get(host)
    if same is not None:
        same.pop(connection, None)
        if not same:
            del by_address[host]
