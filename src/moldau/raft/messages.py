"""Owns what the cores of a group say to each other.

Bytes of entries are not in here: the driver sends them along with an Append, and stores them when
the core of the other side says so.
"""

from typing import NamedTuple

from moldau.model.ids import Epoch, LogId, RaftIndex
from moldau.raft.membership import Members


class EntryInfo(NamedTuple):
    """What the core must know of one record batch or control entry."""

    start: RaftIndex
    end: RaftIndex
    """Index of the entry after it."""
    epoch: Epoch
    members: Members | None = None
    """Set for a membership entry."""


class AppendRequest(NamedTuple):
    """Leader to member: the entries from `start` on. Without entries: does the place match?"""

    epoch: Epoch
    start: RaftIndex
    prev_epoch: Epoch
    """Epoch of the entry just below `start`."""
    entries: tuple[EntryInfo, ...]
    commit: RaftIndex


class AppendResponse(NamedTuple):
    """Answer to Append and Snapshot."""

    epoch: Epoch
    is_accepted: bool
    asked: RaftIndex
    """Refused: the `start` of the Append that was."""
    matched: RaftIndex
    """Accepted: below this, the log is the leader's. Refused: the highest place that may match."""
    flushed: RaftIndex
    """Accepted: below this, it is also on the disk."""
    hint_epoch: Epoch
    """Refused: the epoch of the entry just below `matched`."""
    log_id: LogId
    """The log that this is said of."""


class VoteRequest(NamedTuple):
    """A candidate's question; with `is_pre`, whether it would have a chance."""

    epoch: Epoch
    """The epoch of the election, asked about or begun."""
    end: RaftIndex
    last_epoch: Epoch
    is_pre: bool
    is_transfer: bool
    """The old leader wishes it: do not wait until it is silent."""
    voter_log: LogId
    """The log that makes the receiver a voter, as the candidate's members say."""


class VoteResponse(NamedTuple):
    epoch: Epoch
    """Of the election if granted, else the voter's own."""
    is_granted: bool
    is_pre: bool


class RaftHeartbeat(NamedTuple):
    """Leader to member: I lead. For reads, and where the brokers' own heartbeat does not do."""

    epoch: Epoch
    commit: RaftIndex
    round: int


class RaftHeartbeatResponse(NamedTuple):
    """Member to leader: I follow, with this log."""

    epoch: Epoch
    round: int
    log_id: LogId


class InstallSnapshot(NamedTuple):
    """Leader to member: begin anew at `start`, what you need is no longer in my log.

    The driver sends along what the log and the state machine need there.
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
