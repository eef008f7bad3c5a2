"""Keys of the transaction coordinator's timers."""

from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    TIMEOUT = 1
    """An open transaction times out."""
    RETRY = 2
    """Markers, or a write without a waiting request, are retried."""
    BUSY = 3
    """A request that waits for the end of a transaction times out."""
    EXPIRY = 4
    """Unused transactional ids are deleted."""


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""
    request_id: int = 0
