"""Logs why connections fail: each reason once per address and some time, not once per attempt.

Clients retry several times a second, and a flood must not fill the disk.
"""

import logging
from typing import Final

from moldau.model.clock import Clock

log = logging.getLogger(__name__)

_REPEAT_SECONDS: Final = 60.0
_KNOWN_MAX: Final = 1024
"""Beyond so many addresses within that time, nothing is logged: the first ones show it."""


class FailureLog:
    """Of one listener."""

    def __init__(self, clock: Clock, listener: str = "") -> None:
        self._clock = clock
        self._where = f" to the listener {listener}" if listener else ""
        self._logged_at: dict[tuple[str, str], float] = {}
        self.failures_total = 0

    def warn(self, address: str, reason: str) -> None:
        """`address` is HOST:PORT of the client; its port does not count."""
        self.failures_total += 1
        now = self._clock.monotonic()
        key = (address.rpartition(":")[0], reason)
        if now - self._logged_at.get(key, float("-inf")) < _REPEAT_SECONDS:
            return
        if len(self._logged_at) >= _KNOWN_MAX:
            self._forget_old(now)
            if len(self._logged_at) >= _KNOWN_MAX:
                return
        self._logged_at[key] = now
        log.warning("connection from %s%s closed: %s", address, self._where, reason)

    def _forget_old(self, now: float) -> None:
        self._logged_at = {
            key: at for key, at in self._logged_at.items() if now - at < _REPEAT_SECONDS
        }
