"""What happened in the cluster, as this broker saw it: the last few hundred events, in plain words.

Nothing is stored: each broker keeps its own list, and a new process begins an empty one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

EVENTS_MAX: Final = 200


class ClusterEvent(Struct, frozen=True, kw_only=True):
    id: int
    """Rises by one with each event of this process."""
    at_ms: int
    kind: str
    text: str
    broker: int | None = None
    topic: str | None = None
    """The topic that the text names; None if it names none."""


class ClusterEvents:
    """The last events."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._kept: deque[ClusterEvent] = deque(maxlen=EVENTS_MAX)
        self.last_id = 0

    def add(
        self, kind: str, text: str, *, broker: int | None = None, topic: str | None = None
    ) -> None:
        self.last_id += 1
        self._kept.append(
            ClusterEvent(
                id=self.last_id,
                at_ms=self._wall_ms(),
                kind=kind,
                text=text,
                broker=broker,
                topic=topic,
            )
        )

    def after(self, event_id: int) -> list[ClusterEvent]:
        """Those after that one, the newest first."""
        count = min(self.last_id - event_id, len(self._kept))
        kept = self._kept
        return [kept[-1 - number] for number in range(count)]
