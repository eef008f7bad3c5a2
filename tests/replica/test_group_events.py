"""What is told of a group: few events, the last ones, and repetitions as one."""

import pytest

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft import events as e
from moldau.raft.election import ElectionCause
from moldau.raft.events import RareEffect, Role
from moldau.raft.membership import NO_BROKER, Members, encode_members
from moldau.replica.group_events import (
    EVENTS_MAX,
    EventKind,
    GroupEvents,
    describe_effect,
    describe_members,
    with_event,
)

ME = BrokerId(1)
OTHER = BrokerId(2)
TERM = Epoch(7)
MEMBERS = Members((ME, OTHER), (BrokerId(3),))


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (e.RoleChanged(Role.LEADER, TERM, ME), "broker 1 was elected leader in term 7"),
        (e.RoleChanged(Role.FOLLOWER, TERM, OTHER), "broker 2 leads in term 7"),
        (e.RoleChanged(Role.CANDIDATE, TERM, NO_BROKER), "broker 1 stands for election in term 7"),
        (e.AppendMembership(TERM, MEMBERS), "the voters are 1, 2; the learners are 3"),
        (e.AppendMembership(TERM, Members((ME,))), "the voters are 1"),
        (e.VoterReplaced(OTHER), "broker 2 lost its log, and has a new one"),
        (e.Truncate(RaftIndex(5)), "broker 1 removed entries that were never committed"),
    ],
)
def test_what_people_care_for_is_reported(effect: RareEffect, text: str) -> None:
    found = describe_effect(effect, ME, ElectionCause.LEADER_EXITED)
    assert found is not None
    assert found[1].startswith(text)


def test_why_there_was_an_election_is_reported() -> None:
    for cause in ElectionCause:
        assert describe_effect(e.RoleChanged(Role.LEADER, TERM, ME), ME, cause) is not None
    found = describe_effect(
        e.RoleChanged(Role.CANDIDATE, TERM, NO_BROKER), ME, ElectionCause.TIMEOUT
    )
    assert found is not None
    assert found[1].endswith(": it heard nothing from the leader")


@pytest.mark.parametrize(
    "effect",
    [
        e.RoleChanged(Role.FOLLOWER, TERM, NO_BROKER),
        e.RoleChanged(Role.PRE_CANDIDATE, TERM, NO_BROKER),
        e.AppendNoop(TERM),
        e.PersistVote(TERM, ME),
        e.TransferEnded(OTHER),
    ],
)
def test_what_happens_all_the_time_is_not(effect: RareEffect) -> None:
    assert describe_effect(effect, ME, ElectionCause.TIMEOUT) is None


def test_stored_members_are_reported_and_what_cannot_be_read_is_not() -> None:
    assert describe_members(encode_members(MEMBERS)) == "the voters are 1, 2; the learners are 3"
    assert describe_members(b"\xc1") == ""


def test_the_last_events_are_kept() -> None:
    events: GroupEvents = ()
    for number in range(20):
        events = with_event(events, float(number), EventKind.LEADER, str(number))
    assert [event.words for event in events] == [str(n) for n in range(20 - EVENTS_MAX, 20)]


def test_elections_that_nobody_wins_are_one_event() -> None:
    events = with_event((), 1.0, EventKind.LEADER, "a leads")
    for number in range(100):
        events = with_event(events, 2.0 + number, EventKind.ELECTION, f"election {number}")
    assert [event.words for event in events] == ["a leads", "election 99; 100 times in a row"]
    assert events[-1].at == 101.0
    events = with_event(events, 200.0, EventKind.LEADER, "b leads")
    assert len(events) == 3
