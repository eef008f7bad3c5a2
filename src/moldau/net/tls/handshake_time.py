"""Bounds the share of the event loop's time that goes to TLS handshakes.

A handshake is milliseconds of arithmetic, which costs the client nothing to ask for. Time is
counted as it was used, so the bound holds for all keys: one with RSA 4096 takes fifty times as long
as one with an elliptic curve.
"""

from typing import Final

from moldau.model.clock import Clock

SHARE_MAX: Final = 0.2


class HandshakeTime:
    """One second's share may be used at once; then it is available again as time passes."""

    def __init__(self, clock: Clock, share_max: float = SHARE_MAX) -> None:
        self._clock = clock
        self._share_max = share_max
        self._left = share_max
        self._counted_at = clock.monotonic()

    def took(self, seconds: float) -> None:
        """The last step may take more than is left: the next ones wait for it."""
        self._refill()
        self._left -= seconds

    def wait_seconds(self) -> float:
        """Until the next step of a handshake may begin; 0 if it may now."""
        self._refill()
        return 0.0 if self._left > 0 else (_STEP_SECONDS - self._left) / self._share_max

    def _refill(self) -> None:
        now = self._clock.monotonic()
        gained = (now - self._counted_at) * self._share_max
        self._left = min(self._share_max, self._left + gained)
        self._counted_at = now


_STEP_SECONDS: Final = 0.001
"""There is a little time left when a wait ends: the timer may be early."""
