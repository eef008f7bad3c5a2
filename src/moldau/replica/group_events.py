"""What a Raft group did lately, as this broker saw it: rare events, the last few of each group."""

from enum import Enum
from typing import Final, NamedTuple

from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.raft.election import ElectionCause
from moldau.raft.events import RareEffect, Role
from moldau.raft.membership import NO_BROKER, Members, decode_members

EVENTS_MAX: Final = 6
"""Per group; there may be thousands of groups."""
_CAUSES: Final = {
    ElectionCause.TIMEOUT: "it heard nothing from the leader",
    ElectionCause.LEADER_EXITED: "the process of the leader has ended",
    ElectionCause.TRANSFER: "the leader handed over",
    ElectionCause.REQUESTED: "it is the preferred leader, or the only voter",
}


class EventKind(Enum):
    LEADER = "leader"
    ELECTION = "election"
    MEMBERS = "members"
    SNAPSHOT = "snapshot"
    LOG = "log"


class GroupEvent(NamedTuple):
    at: float
    """By the monotonic clock, in seconds."""
    kind: EventKind
    text: str
    times: int = 1
    """How often in a row."""

    @property
    def words(self) -> str:
        return self.text if self.times == 1 else f"{self.text}; {self.times} times in a row"


GroupEvents = tuple[GroupEvent, ...]
"""The oldest one first."""


def with_event(events: GroupEvents, at: float, kind: EventKind, text: str) -> GroupEvents:
    """Elections that nobody wins, and snapshots, follow each other: they count as one."""
    last = events[-1] if events else None
    if last is not None and last.kind is kind and kind in (EventKind.ELECTION, EventKind.SNAPSHOT):
        return (*events[:-1], GroupEvent(at, kind, text, last.times + 1))
    return (*events[1 - EVENTS_MAX :], GroupEvent(at, kind, text))


def describe_effect(
    effect: RareEffect, me: BrokerId, cause: ElectionCause
) -> tuple[EventKind, str] | None:
    """None for what is nothing to tell. `cause`: of the current election of this broker."""
    match effect:
        case e.RoleChanged(Role.LEADER, epoch, _):
            text = f"broker {me} was elected leader in term {epoch}: {_CAUSES[cause]}"
            return EventKind.LEADER, text
        case e.RoleChanged(Role.FOLLOWER, epoch, leader) if leader != NO_BROKER:
            return EventKind.LEADER, f"broker {leader} leads in term {epoch}"
        case e.RoleChanged(Role.CANDIDATE, epoch, _):
            text = f"broker {me} stands for election in term {epoch}: {_CAUSES[cause]}"
            return EventKind.ELECTION, text
        case e.AppendMembership(_, members):
            return EventKind.MEMBERS, _members(members)
        case e.SendSnapshot(peer, _):
            return EventKind.SNAPSHOT, f"broker {peer} gets a snapshot"
        case e.VoterReplaced(voter):
            return EventKind.LOG, f"broker {voter} lost its log, and has a new one"
        case e.Truncate():
            return EventKind.LOG, f"broker {me} removed entries that were never committed"
        case e.ResetLog():
            return EventKind.LOG, f"broker {me} began again from a snapshot of the leader"
    return None


def describe_members(payload: bytes) -> str:
    """Of a stored membership entry; empty if it cannot be decoded, which others report."""
    try:
        return _members(decode_members(payload))
    except CorruptionError:
        return ""


def _members(members: Members) -> str:
    voters = ", ".join(map(str, members.voters))
    learners = ", ".join(map(str, members.learners))
    return f"the voters are {voters}" + (f"; the learners are {learners}" if learners else "")
