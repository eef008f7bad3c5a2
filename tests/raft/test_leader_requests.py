"""Transfer, members, reads and in-sync replicas, as asked of a leader."""

import pytest

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, RaftIndex
from moldau.raft import events as e
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.raft.messages import AppendResponse, RaftHeartbeat, RaftHeartbeatResponse, TimeoutNow


def answer(epoch: int, matched: int) -> AppendResponse:
    place = RaftIndex(matched)
    return AppendResponse(Epoch(epoch), True, place, place, place, Epoch(epoch), FIRST_LOG)


def members(*voters: int, learners: tuple[int, ...] = ()) -> Members:
    return Members(tuple(map(BrokerId, voters)), tuple(map(BrokerId, learners)))


def ready_leader(make_node):
    """Leads epoch 0; its no-op is committed and on all disks."""
    node = make_node()
    node.elect()
    node.flush()
    for peer in (2, 3):
        node.step(e.AppendSent(BrokerId(peer), Epoch(0), RaftIndex(1), 10))
        node.receive(peer, answer(0, 1))
    assert node.core.is_ready
    return node


def test_a_target_that_has_caught_up_is_asked_at_once(make_node) -> None:
    node = ready_leader(make_node)
    assert node.sent(node.step(e.TransferRequested(BrokerId(2)))) == [(2, TimeoutNow(Epoch(0)))]
    assert not node.core.may_propose


def test_a_target_that_lags_is_asked_when_it_has_caught_up(make_node) -> None:
    node = ready_leader(make_node)
    node.log.epochs.append(Epoch(0))
    node.step(e.Appended(RaftIndex(2)))
    assert node.sent(node.step(e.TransferRequested(BrokerId(2)))) == []
    assert node.sent(node.receive(2, answer(0, 2))) == [(2, TimeoutNow(Epoch(0)))]


def test_a_transfer_that_takes_too_long_is_given_up_and_writes_go_on(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.TransferRequested(BrokerId(2)))
    node.now += node.core.config.transfer_ms_max
    node.step(e.PeerAlive(BrokerId(2), Epoch(0)))
    effects = node.step(e.Tick())
    assert e.TransferEnded(BrokerId(2)) in effects
    assert node.core.may_propose


@pytest.mark.parametrize("target", [1, 9])
def test_a_transfer_needs_another_voter(make_node, target: int) -> None:
    with pytest.raises(RaftRejection):
        ready_leader(make_node).step(e.TransferRequested(BrokerId(target)))


def test_followers_refuse_what_only_leaders_can(make_node) -> None:
    node = make_node()
    for event in (
        e.TransferRequested(BrokerId(2)),
        e.MembershipChangeRequested(members(1, 2)),
        e.ReadIndexRequested(1),
    ):
        with pytest.raises(RaftRejection):
            node.step(event)


def test_members_count_as_soon_as_they_are_appended(make_node) -> None:
    node = ready_leader(make_node)
    effects = node.step(e.MembershipChangeRequested(members(1, 2)))
    assert node.core.members == members(1, 2)
    assert [effect.peer for effect in effects if isinstance(effect, e.SendAppend)] == [2]


def test_nothing_changes_before_the_no_op_is_committed(make_node) -> None:
    node = make_node()
    node.elect()
    with pytest.raises(RaftRejection, match="not committed an entry in this epoch"):
        node.step(e.MembershipChangeRequested(members(1, 2)))


def test_a_second_change_waits_for_the_first(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.MembershipChangeRequested(members(1, 2)))
    with pytest.raises(RaftRejection, match="earlier change"):
        node.step(e.MembershipChangeRequested(members(1)))


def test_a_learner_votes_only_when_it_has_caught_up(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.MembershipChangeRequested(members(1, 2, 3, learners=(4,))))
    node.flush()
    node.receive(2, answer(0, 2))
    with pytest.raises(RaftRejection, match="not caught up"):
        node.step(e.MembershipChangeRequested(members(1, 2, 3, 4)))
    node.receive(4, answer(0, 2))
    node.step(e.MembershipChangeRequested(members(1, 2, 3, 4)))
    assert node.core.members.quorum == 3


def test_a_removed_leader_leads_until_that_is_committed_and_then_hands_over(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.MembershipChangeRequested(members(2, 3)))
    node.flush()
    node.receive(2, answer(0, 2))
    assert node.core.is_leader
    effects = node.receive(3, answer(0, 2))
    assert e.Committed(RaftIndex(2)) in effects
    assert node.core.role is Role.FOLLOWER
    assert node.sent(effects) == [(2, TimeoutNow(Epoch(0)))]


def test_a_read_is_served_when_a_majority_still_follows(make_node) -> None:
    node = ready_leader(make_node)
    effects = node.step(e.ReadIndexRequested(7))
    assert node.sent(effects) == [
        (2, RaftHeartbeat(Epoch(0), RaftIndex(1), 1)),
        (3, RaftHeartbeat(Epoch(0), RaftIndex(1), 1)),
    ]
    assert e.ReadReady((7,), RaftIndex(1)) in node.receive(
        3, RaftHeartbeatResponse(Epoch(0), 1, FIRST_LOG)
    )


def test_reads_that_come_during_a_round_wait_for_the_next(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.ReadIndexRequested(7))
    assert node.step(e.ReadIndexRequested(8)) == []
    assert node.step(e.ReadIndexRequested(9)) == []
    effects = node.receive(2, RaftHeartbeatResponse(Epoch(0), 1, FIRST_LOG))
    assert e.ReadReady((7,), RaftIndex(1)) in effects
    assert node.receive(3, RaftHeartbeatResponse(Epoch(0), 1, FIRST_LOG)) == []
    assert e.ReadReady((8, 9), RaftIndex(1)) in node.receive(
        3, RaftHeartbeatResponse(Epoch(0), 2, FIRST_LOG)
    )


def test_reads_fail_when_leadership_ends(make_node) -> None:
    node = ready_leader(make_node)
    node.step(e.ReadIndexRequested(7))
    node.step(e.ReadIndexRequested(8))
    effects = node.receive(2, RaftHeartbeat(Epoch(3), RaftIndex(0), 0))
    assert e.ReadFailed((7, 8)) in effects


def test_in_sync_are_those_that_were_level_not_long_ago(make_node) -> None:
    node = ready_leader(make_node)
    assert node.core.in_sync(1000) == [1, 2, 3]
    node.now += 800
    node.log.epochs.append(Epoch(0))
    node.step(e.Appended(RaftIndex(2)))
    node.receive(2, answer(0, 2))
    node.now += 800
    node.step(e.PeerAlive(BrokerId(2), Epoch(0)))
    node.step(e.PeerAlive(BrokerId(3), Epoch(0)))
    assert node.core.in_sync(1000) == [1, 2]


def test_held_is_what_the_disks_of_all_members_have(make_node) -> None:
    node = ready_leader(make_node)
    node.log.epochs.append(Epoch(0))
    node.step(e.Appended(RaftIndex(2)))
    node.receive(2, answer(0, 2))
    assert node.core.replicated == 1
    node.receive(3, answer(0, 2))
    assert node.core.replicated == 2
    node.receive(2, RaftHeartbeat(Epoch(3), RaftIndex(0), 0))
    assert node.core.replicated == 0
