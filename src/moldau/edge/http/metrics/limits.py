"""How many series /metrics has at most, and how long one turn of the event loop works on it.

Names from clients become labels only up to a limit, so that a million groups overload neither the
broker nor Prometheus; what is left out is counted.
"""

from typing import Final

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 100
"""Partitions led here have their own series up to this number."""
DETAIL_PARTITIONS_MAX: Final = 10_000
"""The same with `?detail=partition`."""
GROUPS_MAX: Final = 500
GROUP_SERIES_MAX: Final = 2000
"""Pairs of group and topic."""
QUEUES_MAX: Final = 500
"""Pairs of group and topic of work queues."""

ITEMS_PER_TURN: Final = 200
"""Other requests are served after this many partitions or groups."""
LINES_PER_TURN: Final = 1000
"""Of the text; a few milliseconds."""
