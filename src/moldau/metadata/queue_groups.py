"""Owns what the cluster knows of a queue group: that it is one, its topics and its settings.

Every broker holds it, as a part of the image, so whoever leads a partition knows how to treat its
messages. What became of single messages is in `__queue_state`; who is a member, in the group's
coordinator.
"""

from typing import Final

import msgspec

DEAD_LETTER_SUFFIX: Final = ".dead"

VISIBILITY_MS_MAX: Final = 12 * 3_600_000
"""These bounds are those of `groups.queue.config.QueueConfig`."""
ATTEMPTS_MAX: Final = 2**31 - 1
BACKOFF_MS_MAX: Final = 7 * 24 * 3_600_000


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue group treats its messages."""

    visibility_ms: int = 30_000
    """How long a message is leased unless the poll says otherwise."""
    attempts_max: int = 5
    """Deliveries before it is a dead letter."""
    backoff_ms: int = 1_000
    """The pause after the first attempt that failed; it doubles with each."""
    backoff_ms_max: int = 60_000
    dead_letter_topic: str
    starts_at_end: bool = False
    """Whether partitions begin at their end when the group first sees them."""


class QueueGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A queue group."""

    name: str
    topics: tuple[str, ...]
    """Whatever its members have asked for so far, sorted."""
    settings: QueueSettings
