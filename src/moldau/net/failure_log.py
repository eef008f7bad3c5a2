"""Logs why connections fail: each reason once per address and some time, not once per attempt.

Clients retry several times a second, and a flood must not fill the disk.
"""

import logging
from typing import Final

from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.net.networks import network_of

log = logging.getLogger(__name__)

_REPEAT_SECONDS: Final = 60.0
_REASONS_MAX: Final = 8
"""Of one address within that time: who sends garbage gets a new reason each time."""
_ADDRESSES_MAX: Final = 1024
"""Beyond so many within that time, nothing is logged: the first ones show it."""


class _Logged:
    """What was logged of one address."""

    __slots__ = ("left_out", "reasons", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.reasons: set[str] = set()
        self.left_out = 0


class FailureLog:
    """Of one listener."""

    def __init__(self, clock: Clock, listener: str = "") -> None:
        self._clock = clock
        self._where = f" to the listener {listener}" if listener else ""
        self._logged: dict[str, _Logged] = {}
        self._left_out = 0
        """Of addresses that are forgotten, or were never known."""
        self.failures_total = 0

    def warn(self, address: str, reason: str) -> None:
        """`address` is HOST:PORT of the client; its port does not count."""
        self.failures_total += 1
        logged = self._known(network_of(address.rpartition(":")[0]))
        if logged is None:
            self._left_out += 1
            return
        if reason in logged.reasons or len(logged.reasons) >= _REASONS_MAX:
            logged.left_out += 1
            return
        logged.reasons.add(reason)
        more = f" ({self._left_out} more lines were left out)" if self._left_out else ""
        self._left_out = 0
        log.warning(
            "connection from %s%s closed: %s%s",
            address,
            self._where,
            reason,
            more,
            extra=events.CONNECTION_FAILED(address=address),
        )

    def _known(self, network: str) -> _Logged | None:
        now = self._clock.monotonic()
        logged = self._logged.get(network)
        if logged is None:
            if len(self._logged) >= _ADDRESSES_MAX:
                self._forget_old(now)
            if len(self._logged) >= _ADDRESSES_MAX:
                return None
        elif now - logged.since < _REPEAT_SECONDS:
            return logged
        else:
            self._left_out += logged.left_out
        logged = self._logged[network] = _Logged(now)
        return logged

    def _forget_old(self, now: float) -> None:
        for network, logged in list(self._logged.items()):
            if now - logged.since >= _REPEAT_SECONDS:
                self._left_out += logged.left_out
                del self._logged[network]
