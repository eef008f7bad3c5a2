"""Names of the message headers that queues use.

Other clients see them as ordinary headers. Numbers are in decimal.
"""

from typing import Final

DELIVER_AT_HEADER: Final = "moldau-deliver-at"
"""Queue groups do not deliver the message before this time; milliseconds since 1970."""
DELIVER_DAYS_MAX: Final = 366
"""Maximum delay of a delivery."""
ONLY_GROUP_HEADER: Final = "moldau-only-group"
"""The only queue group that gets the message; others skip it. Set on dead letters that are sent
back to their topic, because the other groups have already had them."""

EARLIER_DEATH_HEADER: Final = "moldau-earlier-death"
"""Once for each time that the message was redriven, the oldest first: when and why it became a dead
letter then."""

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
"""It had no key. A compacted dead-letter topic requires one, so it got its source as key."""
DEAD_TRUNCATED_HEADER: Final = "moldau-dead-truncated"
"""What was removed, because it exceeds the dead-letter topic's limit or cannot be read."""
