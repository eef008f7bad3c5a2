"""Keys of the group coordinator's timers."""

from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    SESSION = 1
    """A member's session expires without a heartbeat."""
    PENDING = 2
    """A client must join with the member id it was given."""
    JOIN = 3
    """The join phase of a rebalance ends."""
    SYNC = 4
    """Every member must have synced."""
    EXPIRY = 5
    """An expiry round of old offsets begins."""
    REVOKE = 6
    """A member of a consumer-protocol group must have revoked partitions, or rejoined."""
    DOWNGRADE = 7
    """A consumer-protocol group with only classic members retries its downgrade."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""
