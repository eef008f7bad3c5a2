"""What a leader knows of one member: how far its log matches, and what is in flight to it.

PROBE      the match is unknown: one message at a time, without entries
REPLICATE  the match is known: entries are pipelined, within bounds
SNAPSHOT   the member needs entries that are no longer in the leader's log
"""

from collections import deque
from enum import Enum

from moldau.model.ids import LogId, RaftIndex
from moldau.raft.config import RaftConfig

FOREVER = 1 << 62
NO_LOG = LogId(-1)
"""The member has not reported yet which log it has."""


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member, from its leader's point of view."""

    __slots__ = (
        "_end_to_reach",
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

    def __init__(self, *, next_index: RaftIndex, end: RaftIndex, now: int) -> None:
        """`end`: of the leader's log. A member is caught up once it has shown that it has as much:
        a new leader does not know how far the others are."""
        self.state = ProgressState.PROBE
        self.log_id = NO_LOG
        """The member's log, which all fields below refer to."""
        self.match = RaftIndex(0)
        """On the member's disk. Only increases during one leadership, with one log."""
        self.received = RaftIndex(0)
        """In the member's log, perhaps not yet flushed."""
        self.next = next_index
        """The next entry to send."""
        self.is_sending = False
        """The driver has a pending SendAppend."""
        self.is_waiting = False
        """PROBE: sent, no response yet."""
        self.inflight: deque[tuple[RaftIndex, int]] = deque()
        """End and size of each message without a response, oldest first."""
        self.inflight_bytes = 0
        self.deadline = FOREVER
        """When what was sent counts as lost."""
        self.last_contact_at = now
        self.caught_up_at = -FOREVER
        """When the member last had every entry that the leader had at that time."""
        self._end_to_reach = (end, now)

    def begin_log(self, log_id: LogId) -> None:
        """The member has another log than before: nothing is known about it."""
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

    def acknowledged(self, received: RaftIndex, flushed: RaftIndex, deadline: int) -> None:
        """The member's log matches below `received`."""
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
        """Compare with an earlier end of the leader: under load no member is level.

        That end is kept until the member has it: contacts are more frequent than flushes of a slow
        disk, and an end that moves with each of them is never reached."""
        end_then, then = self._end_to_reach
        if self.received >= end:
            self.caught_up_at = now
        elif self.received < end_then:
            return
        elif then > self.caught_up_at:
            self.caught_up_at = then
        self._end_to_reach = (end, now)
