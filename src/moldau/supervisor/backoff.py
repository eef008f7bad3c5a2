"""When a broker that crashed is started again: later each time, and soon after a healthy period."""

from typing import Final

from moldau.model.exit_codes import ExitCode

FINAL_CODES: Final = frozenset({ExitCode.USAGE, ExitCode.STORAGE, ExitCode.CONFIG})
"""Exit codes after which a broker is not restarted: it would fail again."""

_SECONDS_FIRST: Final = 0.5
_SECONDS_MAX: Final = 30.0
_HEALTHY_SECONDS: Final = 30.0
_DEATHS_COUNTED: Final = 16
"""So that the power of two stays small."""


class Backoff:
    """Of one broker."""

    def __init__(self) -> None:
        self.deaths = 0
        """Consecutive crashes; reset after a healthy period."""

    def died(self, now: float, ready_at: float | None) -> float:
        """Returns the seconds until its next start. `ready_at`: None if it was not ready."""
        if ready_at is not None and now - ready_at >= _HEALTHY_SECONDS:
            self.deaths = 0
        seconds = min(_SECONDS_FIRST * (1 << self.deaths), _SECONDS_MAX)
        self.deaths = min(self.deaths + 1, _DEATHS_COUNTED)
        return seconds

    def reset(self) -> None:
        self.deaths = 0
