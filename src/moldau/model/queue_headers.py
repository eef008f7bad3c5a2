"""Owns the names of the headers by which queues say something in a message itself.

They are Moldau's own; others see them as headers like any. Numbers are written in decimal.
"""

from typing import Final

DELIVER_AT_HEADER: Final = "moldau-deliver-at"
"""Milliseconds since 1970 before which queue groups do not deliver the message."""
DELIVER_DAYS_MAX: Final = 366
"""How far ahead that may be."""
ONLY_GROUP_HEADER: Final = "moldau-only-group"
"""The one queue group that the message is for: others pass it. Dead letters that are sent back to
their topic have it, as all others have had them."""

DEAD_PREFIX: Final = "moldau-dead-"
DEAD_REASON_HEADER: Final = "moldau-dead-reason"
DEAD_ATTEMPTS_HEADER: Final = "moldau-dead-attempts"
DEAD_GROUP_HEADER: Final = "moldau-dead-group"
DEAD_TOPIC_HEADER: Final = "moldau-dead-topic"
DEAD_PARTITION_HEADER: Final = "moldau-dead-partition"
DEAD_OFFSET_HEADER: Final = "moldau-dead-offset"
DEAD_AT_HEADER: Final = "moldau-dead-at"
"""Milliseconds since 1970 when it was written to the dead-letter topic."""
DEAD_KEYLESS_HEADER: Final = "moldau-dead-keyless"
"""It had no key. A compacted dead-letter topic takes none without, so it got its place for one."""
DEAD_TRUNCATED_HEADER: Final = "moldau-dead-truncated"
"""What is missing: the dead-letter topic takes no message of that size, or nobody can read it."""
