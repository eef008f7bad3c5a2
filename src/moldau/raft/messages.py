"""The messages between the Raft cores of a group.

They contain no bytes of entries: the driver sends those along with an AppendRequest, and stores
them when the receiving core emits StoreEntries.
"""

from typing import NamedTuple

from moldau.model.ids import Epoch, LogId, RaftIndex
from moldau.raft.membership import Members


class EntryInfo(NamedTuple):
    """What the core needs to know of one record batch or control entry."""

    start: RaftIndex
    end: RaftIndex
    """Index of the entry after it."""
    epoch: Epoch
    members: Members | None = None
    """Set for a membership entry."""


class AppendRequest(NamedTuple):
    """Leader to member: the entries from `start` on; without entries, a probe for a match."""

    epoch: Epoch
    start: RaftIndex
    prev_epoch: Epoch
    """Epoch of the entry just below `start`."""
    entries: tuple[EntryInfo, ...]
    commit: RaftIndex


class AppendResponse(NamedTuple):
    """Response to AppendRequest and InstallSnapshot."""

    epoch: Epoch
    is_accepted: bool
    rejected_start: RaftIndex
    """Rejected: the `start` of the AppendRequest."""
    matched: RaftIndex
    """Accepted: below it, the log matches the leader's. Rejected: highest index that may match."""
    flushed: RaftIndex
    """Accepted: below it, all entries are also on the disk."""
    hint_epoch: Epoch
    """Rejected: the epoch of the entry just below `matched`."""
    log_id: LogId
    """The log that this response is about."""


class VoteRequest(NamedTuple):
    """A candidate requests a vote; with `is_pre`, a pre-vote."""

    epoch: Epoch
    """The epoch of the election."""
    end: RaftIndex
    last_epoch: Epoch
    is_pre: bool
    is_transfer: bool
    """The old leader hands over: vote without waiting for it to time out."""
    voter_log: LogId
    """The log that makes the receiver a voter, according to the candidate's members."""


class VoteResponse(NamedTuple):
    epoch: Epoch
    """Of the election if granted, otherwise the voter's own."""
    is_granted: bool
    is_pre: bool


class RaftHeartbeat(NamedTuple):
    """Leader to member. For reads, and where the heartbeat between brokers does not suffice."""

    epoch: Epoch
    commit: RaftIndex
    round: int


class RaftHeartbeatResponse(NamedTuple):
    """Member to leader: it follows, with this log."""

    epoch: Epoch
    round: int
    log_id: LogId


class InstallSnapshot(NamedTuple):
    """Leader to member: start again at `start`; what the member needs is no longer in the log.

    The driver sends along what the log and the state machine need.
    """

    epoch: Epoch
    start: RaftIndex
    last_epoch: Epoch
    members: Members


class TimeoutNow(NamedTuple):
    """Leader to voter: stand for election at once."""

    epoch: Epoch


Message = (
    AppendRequest
    | AppendResponse
    | RaftHeartbeat
    | RaftHeartbeatResponse
    | VoteRequest
    | VoteResponse
    | InstallSnapshot
    | TimeoutNow
)
