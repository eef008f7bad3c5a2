"""Owns what a core is told (events) and what it wants done (effects).

The driver carries out the effects of one step in their order before the next step. Storage effects
are done when they return, but for flushes, of control entries too: those end later, with Flushed.
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
    """A message came in. For an Append, the driver keeps the bytes until the step is over."""

    sender: BrokerId
    message: Message


class Appended(NamedTuple):
    """The leader's driver appended proposed batches of the current epoch, up to `end`."""

    end: RaftIndex


class Flushed(NamedTuple):
    """All entries below `end` are on the disk."""

    end: RaftIndex
    truncations: int
    """RaftCore.truncations when the flush began: a late one speaks of entries that are gone."""


class AppendSent(NamedTuple):
    """A SendAppend is on its way, with entries up to `end`."""

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
    """A broker's heartbeat said that it still leads this group in this epoch."""

    leader: BrokerId
    epoch: Epoch
    commit: RaftIndex


class PeerAlive(NamedTuple):
    """A broker answered a heartbeat, and follows this broker in this group and epoch."""

    peer: BrokerId
    epoch: Epoch


class HeartbeatDue(NamedTuple):
    """The peer has not confirmed this group in the brokers' heartbeat: it needs one of its own."""

    peer: BrokerId


class PeerDisconnected(NamedTuple):
    """The connection broke, or a SendAppend could not be done: what was in flight may be lost."""

    peer: BrokerId


class PeerConnected(NamedTuple):
    """There is a new connection, perhaps to a restarted peer: ask at once where its log stands."""

    peer: BrokerId


class PeerExited(NamedTuple):
    """Its process is gone, as far as can be told: nobody need wait for a sign of life."""

    peer: BrokerId


class AppendFailed(NamedTuple):
    """The disk was full: the entries of the last effect are not in the log, or not all of them."""


class CampaignRequested(NamedTuple):
    """Stand for election now, if others agree: a fresh group, or an operator's wish."""


class TransferRequested(NamedTuple):
    """Hand leadership over. Raises RaftRefusal."""

    target: BrokerId


class MembershipChangeRequested(NamedTuple):
    """Change the members. Raises RaftRefusal."""

    members: Members


class ReadIndexRequested(NamedTuple):
    """From which index on is a read fresh? Raises RaftRefusal."""

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

    May wait until the connection takes more, as long as the epoch stays: there is never more than
    one of these per peer. With bytes_max 0 no entries are sent.
    """

    peer: BrokerId
    epoch: Epoch
    start: RaftIndex
    prev_epoch: Epoch
    bytes_max: int


class SendSnapshot(NamedTuple):
    """Send the message, and what log and state machine need to begin there.

    Takes the place of a SendAppend to this peer that is not done yet, and is not reported."""

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
    """Append the entries of the Append at hand from `start` on."""

    start: RaftIndex


class Truncate(NamedTuple):
    """Cut every entry at or above `end`, durably."""

    end: RaftIndex


class ResetLog(NamedTuple):
    """Drop every entry and begin at the Snapshot at hand, durably."""

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
    """A voter came back with another log than the one that the group counts on: it has to learn,
    and to be made a voter again."""

    voter: BrokerId


class TransferEnded(NamedTuple):
    """Given up: this broker still leads, and writes go on."""

    target: BrokerId


class ReadReady(NamedTuple):
    """A state machine that has applied all below `end` answers these reads freshly."""

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
