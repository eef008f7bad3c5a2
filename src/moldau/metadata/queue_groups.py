"""Topics and settings of queue groups, as part of the metadata image.

Every broker has them, so that every partition leader knows the group's settings. The state of
single messages is in `__queue_state`, the members are in the group's coordinator.
"""

from typing import Final

import msgspec

DEAD_LETTER_SUFFIX: Final = ".dead"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    visibility_ms: int = 30_000
    """Lease time of a message, unless the poll sets one."""
    attempts_max: int = 5
    """Deliveries before a message becomes a dead letter."""
    backoff_ms: int = 1_000
    """Backoff after the first failed attempt; doubles with each further one."""
    backoff_ms_max: int = 60_000
    dead_letter_topic: str
    starts_at_end: bool = False
    """Whether the group starts at the end of new partitions."""


class QueueGroup(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topics: tuple[str, ...]
    """All topics that its members have subscribed to so far, sorted."""
    settings: QueueSettings
