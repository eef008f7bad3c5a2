"""The input of a Raft core (events) and its output (effects).

The driver carries out the effects of one step, in order, before the next step. Storage effects are
complete when they return, except for flushes: those end later, with Flushed.
"""

from enum import Enum
from typing import NamedTuple

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.membership import Members
from moldau.raft.messages import Message


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


# ---- events


class Received(NamedTuple):
    """A message arrived. For an AppendRequest, the driver keeps the bytes until the step ends."""

    sender: BrokerId
    message: Message


class Appended(NamedTuple):
    """The leader's driver appended proposed batches of the current epoch, up to `end`."""

    end: RaftIndex


class Flushed(NamedTuple):
    """All entries below `end` are on the disk."""

    end: RaftIndex
    truncations: int
    """RaftCore.truncations when the flush began: a late flush may cover truncated entries."""


class AppendSent(NamedTuple):
    """A SendAppend was sent, with entries up to `end`."""

    peer: BrokerId
    epoch: Epoch
    end: RaftIndex
    size: int


class VotePersisted(NamedTuple):
    """A PersistVote is durable."""

    epoch: Epoch
    voted_for: BrokerId


class Tick(NamedTuple):
    """RaftCore.deadline has passed."""


class LeaderAlive(NamedTuple):
    """A broker's heartbeat reported that it still leads this group in this epoch."""

    leader: BrokerId
    epoch: Epoch
    commit: RaftIndex


class PeerAlive(NamedTuple):
    """A broker responded to a heartbeat, and follows this broker in this group and epoch."""

    peer: BrokerId
    epoch: Epoch


class HeartbeatDue(NamedTuple):
    """The peer has not confirmed this group in the brokers' heartbeat: send one for the group."""

    peer: BrokerId


class PeerDisconnected(NamedTuple):
    """The connection broke, or a SendAppend failed: what was in flight may be lost."""

    peer: BrokerId


class PeerConnected(NamedTuple):
    """There is a new connection, perhaps to a restarted peer: probe its log at once."""

    peer: BrokerId


class PeerExited(NamedTuple):
    """The peer's process has exited, as far as is known: do not wait for its heartbeat."""

    peer: BrokerId


class AppendFailed(NamedTuple):
    """The disk was full: the entries of the last effect are not in the log, or not all of them."""


class CampaignRequested(NamedTuple):
    """Start a pre-vote now: for a new group, or requested by an operator."""


class TransferRequested(NamedTuple):
    """Hand leadership over. Raises RaftRejection."""

    target: BrokerId


class MembershipChangeRequested(NamedTuple):
    """Change the members. Raises RaftRejection."""

    members: Members


class ReadIndexRequested(NamedTuple):
    """A linearizable read; answered by ReadReady or ReadFailed. Raises RaftRejection."""

    read_id: int


RareEvent = (
    VotePersisted
    | Tick
    | LeaderAlive
    | PeerAlive
    | HeartbeatDue
    | PeerDisconnected
    | PeerConnected
    | PeerExited
    | AppendFailed
    | CampaignRequested
    | TransferRequested
    | MembershipChangeRequested
    | ReadIndexRequested
)
Event = Received | Appended | Flushed | AppendSent | RareEvent


# ---- effects


class Send(NamedTuple):
    peer: BrokerId
    message: Message


class SendAppend(NamedTuple):
    """Read entries from `start` on and send them, then report AppendSent.

    May wait until the connection accepts more, while the epoch stays the same: there is at most
    one of these per peer. With bytes_max 0 no entries are sent.
    """

    peer: BrokerId
    epoch: Epoch
    start: RaftIndex
    prev_epoch: Epoch
    bytes_max: int


class SendSnapshot(NamedTuple):
    """Send the message, and what log and state machine need to start there.

    Replaces a pending SendAppend to this peer; no event reports that it was sent."""

    peer: BrokerId
    message: Message


class PersistVote(NamedTuple):
    """Make it durable, in order with others, then report VotePersisted."""

    epoch: Epoch
    voted_for: BrokerId


class AppendNoop(NamedTuple):
    epoch: Epoch


class AppendMembership(NamedTuple):
    epoch: Epoch
    members: Members


class StoreEntries(NamedTuple):
    """Append the entries of the current AppendRequest from `start` on."""

    start: RaftIndex


class Truncate(NamedTuple):
    """Durably remove every entry at or above `end`."""

    end: RaftIndex


class ResetLog(NamedTuple):
    """Durably drop every entry and start at the current InstallSnapshot."""

    start: RaftIndex


class Committed(NamedTuple):
    """Entries below `end` will never change."""

    end: RaftIndex


class RoleChanged(NamedTuple):
    role: Role
    epoch: Epoch
    leader: BrokerId
    """NO_BROKER while none is known."""


class VoterReplaced(NamedTuple):
    """A voter came back with another log than the one that the group expects: it must catch up as
    a learner and be made a voter again."""

    voter: BrokerId


class TransferEnded(NamedTuple):
    """The transfer timed out: this broker still leads, and writes continue."""

    target: BrokerId


class ReadReady(NamedTuple):
    """A state machine that has applied everything below `end` may serve these reads."""

    read_ids: tuple[int, ...]
    end: RaftIndex


class ReadFailed(NamedTuple):
    """This broker no longer leads."""

    read_ids: tuple[int, ...]


RareEffect = (
    SendSnapshot
    | PersistVote
    | AppendNoop
    | AppendMembership
    | Truncate
    | ResetLog
    | RoleChanged
    | VoterReplaced
    | TransferEnded
    | ReadReady
    | ReadFailed
)
Effect = Send | SendAppend | StoreEntries | Committed | RareEffect
