"""The TLS handshakes in progress of one listener: their number, and their deadline."""

from asyncio import AbstractEventLoop
from collections import Counter
from typing import Final

from moldau.model.clock import Clock
from moldau.net.connection import Connection
from moldau.net.failure_log import FailureLog

HANDSHAKES_MAX: Final = 2048
HANDSHAKES_PER_ADDRESS_MAX: Final = 512


class Handshakes:
    def __init__(
        self, loop: AbstractEventLoop, clock: Clock, seconds_max: float, failures: FailureLog
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._seconds_max = seconds_max
        self._failures = failures
        self._running: dict[Connection, tuple[str, float]] = {}
        """The address and the start of each; the oldest first."""
        self._per_address: Counter[str] = Counter()
        self._is_timed = False

    def __len__(self) -> int:
        return len(self._running)

    def refusal(self, host: str) -> str:
        """Why no more handshakes of this address may begin; empty if they may."""
        if len(self._running) >= HANDSHAKES_MAX:
            return f"limit of {HANDSHAKES_MAX} handshakes in progress reached"
        if self._per_address[host] >= HANDSHAKES_PER_ADDRESS_MAX:
            return f"limit of {HANDSHAKES_PER_ADDRESS_MAX} handshakes per address reached"
        return ""

    def began(self, connection: Connection, host: str) -> None:
        self._running[connection] = (host, self._clock.monotonic())
        self._per_address[host] += 1
        self._watch()

    def ended(self, connection: Connection) -> None:
        """It is complete, or the connection is closed."""
        found = self._running.pop(connection, None)
        if found is not None:
            host = found[0]
            self._per_address[host] -= 1
            if not self._per_address[host]:
                del self._per_address[host]

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
            reason = f"no TLS handshake within {self._seconds_max:g} s"
            self._failures.warn(connection.address, reason)
            connection.close(reason)
        self._watch()
