"""What a follower stores, cuts and acknowledges."""

import pytest

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.membership import Members
from moldau.raft.messages import (
    AppendResponse,
    InstallSnapshot,
    RaftHeartbeat,
    RaftHeartbeatResponse,
)


def answers(node, effects) -> list[AppendResponse]:
    return [message for _, message in node.sent(effects) if isinstance(message, AppendResponse)]


def follower(make_node, epochs: list[int], epoch: int = 9):
    """Follows broker 2, whose epoch is durable."""
    node = make_node(epochs=epochs, epoch=epoch)
    node.receive(2, RaftHeartbeat(Epoch(epoch), RaftIndex(0), 0))
    return node


def test_entries_are_acknowledged_when_they_are_flushed(make_node, make_append) -> None:
    node = follower(make_node, [1])
    assert answers(node, node.receive(2, make_append(9, 1, 1, [9, 9]))) == []
    (answer,) = answers(node, node.flush())
    assert (answer.is_accepted, answer.matched, answer.flushed) == (True, 3, 3)


def test_a_request_without_entries_is_answered_at_once_with_what_is_flushed(
    make_node, make_append
) -> None:
    node = follower(make_node, [1])
    node.receive(2, make_append(9, 1, 1, [9, 9]))
    (answer,) = answers(node, node.receive(2, make_append(9, 1, 1, [])))
    assert (answer.matched, answer.flushed) == (3, 1)


def test_a_flush_that_began_before_a_cut_counts_for_nothing(make_node, make_append) -> None:
    node = follower(make_node, [1], epoch=8)
    node.receive(2, make_append(8, 1, 1, [8, 8]))
    began = node.core.truncations
    node.receive(3, make_append(9, 1, 1, [9, 9]))
    node.persist()
    assert node.step(e.Flushed(RaftIndex(3), began)) == []
    assert node.core.flushed == 1


def test_what_matches_is_skipped_and_what_differs_is_cut(make_node, make_append) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    node.receive(2, make_append(9, 0, -1, [1, 1, 3]))
    assert node.log.epochs == [1, 1, 3]
    assert node.core.truncations == 1


@pytest.mark.parametrize(("start", "prev", "epochs"), [(0, -1, [1, 1]), (2, 1, []), (1, 1, [1])])
def test_short_and_old_appends_cut_nothing(
    make_node, make_append, start: int, prev: int, epochs: list[int]
) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    node.receive(2, make_append(9, start, prev, epochs))
    assert node.log.epochs == [1, 1, 2, 2]


def test_more_than_agreed_is_not_acknowledged(make_node, make_append) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    (answer,) = answers(node, node.receive(2, make_append(9, 2, 1, [])))
    assert (answer.matched, answer.flushed) == (2, 2)


def test_the_commit_does_not_go_beyond_what_is_agreed(make_node, make_append) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    node.receive(2, make_append(9, 2, 1, [], commit=4))
    assert node.core.commit == 2
    node.step(e.LeaderAlive(BrokerId(2), Epoch(9), RaftIndex(4)))
    assert node.core.commit == 2


def test_a_new_epoch_agrees_on_nothing_yet(make_node, make_append) -> None:
    node = follower(make_node, [1, 1])
    node.receive(2, make_append(9, 2, 1, [9], commit=2))
    node.receive(3, RaftHeartbeat(Epoch(10), RaftIndex(3), 0))
    assert (node.core.verified, node.core.commit) == (0, 2)


@pytest.mark.parametrize(
    ("epochs", "start", "prev", "place", "hint"),
    [
        ([1, 1, 1], 7, 5, 3, 1),
        ([1, 1, 4, 4, 4], 5, 3, 2, 1),
        ([4, 4, 4], 3, 2, 0, -1),
        ([1, 2, 3, 3], 4, 2, 2, 2),
    ],
)
def test_a_refusal_names_the_end_of_an_epoch_that_the_leader_can_have(
    make_node, make_append, epochs, start, prev, place, hint
) -> None:
    node = follower(make_node, epochs)
    (answer,) = answers(node, node.receive(2, make_append(9, start, prev, [9])))
    assert not answer.is_accepted
    assert (answer.rejected_start, answer.matched, answer.hint_epoch) == (start, place, hint)


def test_committed_entries_are_never_cut(make_node, make_append) -> None:
    node = follower(make_node, [1, 1])
    node.receive(2, make_append(9, 2, 1, [], commit=2))
    node.receive(3, make_append(10, 0, -1, [1, 5]))
    assert node.log.epochs == [1, 1]
    with pytest.raises(RaftError, match="contradicts"):
        node.core._follower._truncate(RaftIndex(1))


def test_members_go_with_the_entry_that_is_cut(make_node, make_append) -> None:
    node = follower(make_node, [1])
    message = make_append(9, 1, 1, [9])
    entry = message.entries[0]._replace(members=Members((BrokerId(1), BrokerId(2))))
    node.log.memberships[RaftIndex(1)] = entry.members
    node.receive(2, message._replace(entries=(entry,)))
    assert node.core.members.voters == (1, 2)
    node.receive(3, make_append(10, 1, 1, [10]))
    assert node.core.members.voters == (1, 2, 3)


def test_a_stale_leader_is_sent_the_epoch(make_node, make_append) -> None:
    node = follower(make_node, [1])
    told = RaftHeartbeatResponse(Epoch(9), 0, FIRST_LOG)
    assert node.sent(node.receive(3, make_append(5, 1, 1, [5]))) == [(3, told)]
    assert node.log.epochs == [1]


def test_two_leaders_of_one_epoch_stop_the_replica(make_node) -> None:
    node = follower(make_node, [1])
    with pytest.raises(RaftError, match="both lead"):
        node.receive(3, RaftHeartbeat(Epoch(9), RaftIndex(0), 0))


def test_heartbeats_put_the_election_off(make_node) -> None:
    node = follower(make_node, [1])
    before = node.core.deadline
    node.now += 500
    node.step(e.LeaderAlive(BrokerId(2), Epoch(9), RaftIndex(0)))
    assert node.core.deadline == before + 500
    node.step(e.LeaderAlive(BrokerId(2), Epoch(8), RaftIndex(0)))
    node.step(e.LeaderAlive(BrokerId(3), Epoch(9), RaftIndex(0)))
    assert node.core.deadline == before + 500


def test_a_snapshot_replaces_a_log_that_lacks_its_place(make_node) -> None:
    node = follower(make_node, [1, 1])
    members = Members((BrokerId(1), BrokerId(2)))
    snapshot = InstallSnapshot(Epoch(9), RaftIndex(5), Epoch(0), members)
    (answer,) = answers(node, node.receive(2, snapshot))
    assert (answer.matched, answer.flushed) == (5, 5)
    assert (node.core.commit, node.core.end, node.core.members) == (5, 5, members)


def test_a_snapshot_of_what_is_there_keeps_the_log(make_node) -> None:
    node = follower(make_node, [1, 1, 2])
    node.receive(2, InstallSnapshot(Epoch(9), RaftIndex(2), Epoch(1), node.core.members))
    assert (node.core.end, node.core.commit) == (3, 2)


def test_a_full_disk_takes_back_what_was_not_stored(make_node, make_append) -> None:
    node = follower(make_node, [1])
    node.core.step(0, e.Received(BrokerId(2), make_append(9, 1, 1, [9, 9], commit=3)))
    node.step(e.AppendFailed())
    assert (node.core.end, node.core.commit, node.core.verified) == (1, 1, 1)


def test_a_snapshot_for_which_there_is_no_room_says_nothing_of_the_old_log(
    make_node, make_append
) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    node.receive(2, make_append(9, 2, 1, [], commit=2))
    node.log.flushed_index = node.core.flushed = RaftIndex(3)
    snapshot = InstallSnapshot(Epoch(9), RaftIndex(7), Epoch(0), node.core.members)
    node.core.step(0, e.Received(BrokerId(2), snapshot))
    node.step(e.AppendFailed())
    # Entries 2 and 3 are not known to be committed, nor is the last on the disk.
    assert (node.core.end, node.core.commit, node.core.verified) == (4, 2, 2)
    assert (node.core.flushed, node.core.last_epoch) == (3, 2)
    node.receive(2, snapshot)
    node.core.step(0, e.Received(BrokerId(2), make_append(9, 7, 0, [9], commit=8)))
    node.step(e.AppendFailed())
    assert (node.core.end, node.core.commit, node.core.verified) == (7, 7, 7)


def test_a_snapshot_without_room_is_not_acknowledged_once_the_epoch_is_durable(make_node) -> None:
    node = follower(make_node, [1, 1, 2, 2])
    snapshot = InstallSnapshot(Epoch(10), RaftIndex(7), Epoch(0), node.core.members)
    node.core.step(0, e.Received(BrokerId(2), snapshot))
    node.step(e.AppendFailed())
    persisted = e.VotePersisted(node.core.epoch, node.core.voted_for)
    assert answers(node, node.step(persisted)) == []


def test_a_lost_log_costs_the_vote_until_an_entry_names_the_new_one(make_node, make_append) -> None:
    node = make_node(epoch=9, log_id=8)
    # An entry of old, met while the log is filled again, names the log that is gone.
    old = make_append(9, 0, -1, [1, 9], commit=2)
    first = old.entries[0]._replace(members=Members((BrokerId(1), BrokerId(2))))
    node.receive(2, old._replace(entries=(first, *old.entries[1:])))
    (answer,) = answers(node, node.flush())
    assert (answer.flushed, answer.log_id, node.core.commit) == (2, 8, 2)
    assert not node.core.is_voter
    new = make_append(9, 2, 9, [9], commit=2)
    voters = Members((BrokerId(1), BrokerId(2)), (), ((BrokerId(1), LogId(8)),))
    node.receive(2, new._replace(entries=(new.entries[0]._replace(members=voters),)))
    assert node.core.is_voter
