"""The group of one voter keeps Raft's order: vote, then epoch, then no-op, then commit."""

import pytest

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.group import (
    AppendNoop,
    NoopAppended,
    PersistVote,
    RaftError,
    RaftGroup,
    VotePersisted,
)

ME = BrokerId(1)


def make_group(epoch: int = 4, commit: int = 0) -> RaftGroup:
    return RaftGroup(
        broker=ME, voters=frozenset({ME}), epoch=Epoch(epoch), commit=RaftIndex(commit)
    )


def test_an_election_uses_its_epoch_only_after_the_vote_is_durable() -> None:
    group = make_group(epoch=4)
    assert group.campaign(Epoch(2)) == [PersistVote(Epoch(5), ME)]
    assert (group.epoch, group.is_leader) == (4, False)
    assert group.step(VotePersisted(Epoch(5))) == [AppendNoop(Epoch(5))]
    assert (group.epoch, group.is_leader) == (5, True)


def test_the_new_epoch_is_above_what_the_log_has_seen() -> None:
    assert make_group(epoch=1).campaign(Epoch(7)) == [PersistVote(Epoch(8), ME)]


def test_a_fresh_group_starts_at_epoch_zero() -> None:
    assert make_group(epoch=-1).campaign(Epoch(-1)) == [PersistVote(Epoch(0), ME)]


def test_nothing_commits_before_the_no_op_of_the_own_epoch_is_flushed() -> None:
    group = make_group()
    group.campaign(Epoch(4))
    group.step(VotePersisted(Epoch(5)))
    assert group.flushed(RaftIndex(10)) == 0
    group.step(NoopAppended(RaftIndex(10)))
    assert group.flushed(RaftIndex(10)) == 0
    assert group.flushed(RaftIndex(11)) == 11


def test_commit_never_goes_back() -> None:
    group = make_group()
    group.campaign(Epoch(4))
    group.step(VotePersisted(Epoch(5)))
    group.step(NoopAppended(RaftIndex(0)))
    assert group.flushed(RaftIndex(9)) == 9
    assert group.flushed(RaftIndex(3)) == 9


def test_a_stale_vote_completion_is_a_defect() -> None:
    group = make_group()
    group.campaign(Epoch(4))
    with pytest.raises(RaftError, match="epoch 3"):
        group.step(VotePersisted(Epoch(3)))


def test_a_group_of_several_voters_is_refused() -> None:
    with pytest.raises(RaftError, match=r"\[1, 2\]"):
        RaftGroup(
            broker=ME, voters=frozenset({ME, BrokerId(2)}), epoch=Epoch(0), commit=RaftIndex(0)
        )
