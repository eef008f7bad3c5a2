"""Owns what a leader knows of one member: how far its log agrees, and what is on the way to it.

PROBE      where the logs agree is not known: one message at a time, without entries
REPLICATE  known: entries are sent ahead of the answers, within bounds
SNAPSHOT   the member needs entries that the leader's log no longer holds
"""

from collections import deque
from enum import Enum

from moldau.model.ids import LogId, RaftIndex
from moldau.raft.config import RaftConfig

FOREVER = 1 << 62
NO_LOG = LogId(-1)
"""The member has not said yet which log it has."""


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member as its leader sees it."""

    __slots__ = (
        "_end_at_answer",
        "caught_up_at",
        "deadline",
        "inflight",
        "inflight_bytes",
        "is_sending",
        "is_waiting",
        "last_contact_at",
        "log_id",
        "match",
        "next",
        "received",
        "state",
    )

    def __init__(self, *, next_index: RaftIndex, now: int) -> None:
        self.state = ProgressState.PROBE
        self.log_id = NO_LOG
        """The member's log, which all that follows is said of."""
        self.match = RaftIndex(0)
        """On the member's disk. Only rises while this leader leads and the log stays the same."""
        self.received = RaftIndex(0)
        """In the member's log, perhaps not yet flushed."""
        self.next = next_index
        """The next entry to send."""
        self.is_sending = False
        """The driver has a SendAppend in hand."""
        self.is_waiting = False
        """PROBE: asked, and not yet answered."""
        self.inflight: deque[tuple[RaftIndex, int]] = deque()
        """End and size of each message not yet answered, oldest first."""
        self.inflight_bytes = 0
        self.deadline = FOREVER
        """When what was sent counts as lost."""
        self.last_contact_at = now
        self.caught_up_at = -FOREVER
        """When the member last held everything that the leader held at that time."""
        self._end_at_answer = (RaftIndex(0), now)

    def begin_log(self, log_id: LogId) -> None:
        """The member has another log than before: nothing is known of it."""
        self.log_id = log_id
        self.match = self.received = RaftIndex(0)
        self.caught_up_at = -FOREVER

    def become_probe(self, next_index: RaftIndex) -> None:
        self.state = ProgressState.PROBE
        self.next = next_index
        self.is_waiting = False
        self._forget_inflight()

    def become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next = self.received
        self.is_waiting = False
        self._forget_inflight()

    def become_snapshot(self, deadline: int) -> None:
        self.state = ProgressState.SNAPSHOT
        self.is_waiting = False
        self._forget_inflight()
        self.deadline = deadline

    def _forget_inflight(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
        self.deadline = FOREVER

    def room(self, config: RaftConfig) -> int:
        """Bytes that may be sent now."""
        if len(self.inflight) >= config.inflight_count_max:
            return 0
        return config.inflight_bytes_max - self.inflight_bytes

    def sent(self, end: RaftIndex, size: int, deadline: int) -> None:
        if self.state is ProgressState.REPLICATE and end > self.next:
            self.next = end
            self.inflight.append((end, size))
            self.inflight_bytes += size
            if self.deadline == FOREVER:
                self.deadline = deadline

    def answered(self, received: RaftIndex, flushed: RaftIndex, deadline: int) -> None:
        """The member's log agrees below `received`."""
        if received > self.received:
            self.received = received
        if flushed > self.match:
            self.match = flushed
        inflight = self.inflight
        is_freed = False
        while inflight and inflight[0][0] <= received:
            self.inflight_bytes -= inflight.popleft()[1]
            is_freed = True
        if not inflight:
            if self.state is ProgressState.REPLICATE:
                self.deadline = FOREVER
        elif is_freed:
            self.deadline = deadline

    def note_caught_up(self, end: RaftIndex, now: int) -> None:
        """Judge by the leader's end at the previous answer: under load nobody is ever level."""
        end_then, then = self._end_at_answer
        if self.received >= end:
            self.caught_up_at = now
        elif self.received >= end_then and then > self.caught_up_at:
            self.caught_up_at = then
        self._end_at_answer = (end, now)
