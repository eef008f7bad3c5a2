"""How a leader replicates, commits and steps down."""

import pytest

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.events import Role
from moldau.raft.messages import AppendResponse, InstallSnapshot, RaftHeartbeat
from moldau.raft.progress import ProgressState


def answer(
    epoch: int, matched: int, flushed: int | None = None, log: int = FIRST_LOG
) -> AppendResponse:
    return AppendResponse(
        epoch=Epoch(epoch),
        is_accepted=True,
        rejected_start=RaftIndex(matched),
        matched=RaftIndex(matched),
        flushed=RaftIndex(matched if flushed is None else flushed),
        hint_epoch=Epoch(epoch),
        log_id=LogId(log),
    )


def refusal(epoch: int, asked: int, place: int, hint: int, log: int = FIRST_LOG) -> AppendResponse:
    return AppendResponse(
        epoch=Epoch(epoch),
        is_accepted=False,
        rejected_start=RaftIndex(asked),
        matched=RaftIndex(place),
        flushed=RaftIndex(0),
        hint_epoch=Epoch(hint),
        log_id=LogId(log),
    )


def appends(effects) -> list[e.SendAppend]:
    return [effect for effect in effects if isinstance(effect, e.SendAppend)]


def commits(effects) -> list[int]:
    return [effect.end for effect in effects if isinstance(effect, e.Committed)]


def leader(make_node, epochs: list[int], **options):
    node = make_node(epochs=epochs, epoch=4, **options)
    for send in appends(node.elect()):
        node.step(e.AppendSent(send.peer, send.epoch, node.core.end, 10))
    node.flush()
    return node


def test_a_new_leader_appends_a_no_op_and_sends_it_to_all(make_node) -> None:
    node = make_node(epochs=[1, 1], epoch=4)
    sends = appends(node.elect())
    assert node.log.epochs == [1, 1, 5]
    assert [(send.peer, send.start, send.prev_epoch) for send in sends] == [(2, 2, 1), (3, 2, 1)]
    assert all(send.bytes_max > 0 for send in sends)


def test_entries_of_earlier_epochs_commit_only_with_the_no_op(make_node) -> None:
    node = leader(make_node, [1, 1])
    assert commits(node.receive(2, answer(5, 2))) == []
    assert commits(node.receive(3, answer(5, 2))) == []
    assert commits(node.receive(2, answer(5, 3))) == [3]


def test_what_a_follower_has_only_received_does_not_commit(make_node) -> None:
    node = leader(make_node, [])
    assert commits(node.receive(2, answer(5, 1, flushed=0))) == []


def test_followers_commit_before_the_leaders_own_flush(make_node) -> None:
    node = make_node(epoch=4)
    node.elect()
    assert commits(node.receive(2, answer(5, 1))) == []
    assert commits(node.receive(3, answer(5, 1))) == [1]


def test_a_leader_is_alone_without_other_members_only(make_node) -> None:
    for voters in ((1,), (1, 2, 3)):
        node = make_node(voters=voters)
        assert not node.core.leads_alone
        node.elect()
        assert node.core.role is e.Role.LEADER
        assert node.core.leads_alone is (voters == (1,))


def test_a_single_voter_commits_what_it_flushes(make_node) -> None:
    node = make_node(voters=(1,))
    node.elect()
    assert commits(node.flush()) == [1]
    node.log.epochs.append(node.core.epoch)
    node.step(e.Appended(RaftIndex(2)))
    assert commits(node.flush()) == [2]


def test_entries_go_out_ahead_of_the_answers_until_the_room_is_used(make_node) -> None:
    node = leader(make_node, [])
    node.receive(2, answer(5, 1))
    sent = 0
    for _ in range(200):
        node.log.epochs.append(Epoch(5))
        effects = node.step(e.Appended(node.log.end_index))
        for send in appends(effects):
            if send.peer == 2:
                sent += 1
                node.step(e.AppendSent(send.peer, send.epoch, node.core.end, 1000))
    assert sent == node.core.config.inflight_count_max
    more = appends(node.receive(2, answer(5, 10)))
    assert [send.peer for send in more] == [2]


def test_one_send_is_in_hand_at_a_time(make_node) -> None:
    node = leader(make_node, [])
    node.receive(2, answer(5, 1))
    node.log.epochs += [Epoch(5)]
    (first,) = appends(node.step(e.Appended(RaftIndex(2))))
    node.log.epochs += [Epoch(5)]
    assert appends(node.step(e.Appended(RaftIndex(3)))) == []
    (second,) = appends(node.step(e.AppendSent(first.peer, Epoch(5), RaftIndex(2), 10)))
    assert second.start == 2


@pytest.mark.parametrize(
    ("place", "hint", "start"),
    [(2, 1, 2), (5, 2, 3), (4, 1, 3), (1, 1, 1), (3, 3, 3), (0, -1, 0)],
)
def test_a_refusal_goes_back_by_epochs(make_node, place: int, hint: int, start: int) -> None:
    node = leader(make_node, [1, 1, 1, 4, 4, 4])
    (probe,) = appends(node.receive(2, refusal(5, 6, place, hint)))
    assert (probe.start, probe.bytes_max) == (start, 0)


def test_an_old_refusal_changes_nothing(make_node) -> None:
    node = leader(make_node, [1, 1, 1])
    node.receive(2, answer(5, 4))
    assert appends(node.receive(2, refusal(5, 3, 1, 1))) == []
    assert node.core.progress[BrokerId(2)].state is ProgressState.REPLICATE


def test_a_missing_response_leads_to_a_request_without_entries(make_node) -> None:
    node = leader(make_node, [])
    node.receive(2, answer(5, 1))
    node.receive(3, answer(5, 1))
    node.log.epochs += [Epoch(5)]
    for send in appends(node.step(e.Appended(RaftIndex(2)))):
        node.step(e.AppendSent(send.peer, send.epoch, RaftIndex(2), 10))
    node.receive(3, answer(5, 2))
    node.now = node.core.deadline
    (probe,) = appends(node.step(e.Tick()))
    assert (probe.peer, probe.start, probe.bytes_max) == (2, 1, 0)


def test_what_the_log_no_longer_holds_comes_as_a_snapshot(make_node) -> None:
    node = leader(make_node, [1, 1, 1])
    node.receive(3, answer(5, 4))
    node.log.start_index = RaftIndex(2)
    effects = node.receive(2, refusal(5, 3, 1, 1))
    (snapshot,) = [effect for effect in effects if isinstance(effect, e.SendSnapshot)]
    assert isinstance(snapshot.message, InstallSnapshot)
    assert (snapshot.peer, snapshot.message.start, snapshot.message.last_epoch) == (2, 2, 1)
    (send,) = appends(node.receive(2, answer(5, 2)))
    assert send.start == 2


def test_a_new_connection_is_asked_at_once_where_its_log_stands(make_node) -> None:
    node = leader(make_node, [])
    node.receive(2, answer(5, 1))
    assert appends(node.step(e.PeerDisconnected(BrokerId(2)))) == []
    (probe,) = appends(node.step(e.PeerConnected(BrokerId(2))))
    assert (probe.peer, probe.start, probe.bytes_max) == (2, 1, 0)
    assert node.core.progress[BrokerId(2)].match == 0


def test_a_leader_without_contact_to_a_majority_steps_down(make_node) -> None:
    node = leader(make_node, [])
    interval = node.core.config.election_ms_min
    for _ in range(3):
        node.now += interval
        node.step(e.PeerAlive(BrokerId(3), Epoch(5)))
        node.step(e.Tick())
    assert node.core.is_leader
    node.now += interval
    effects = node.step(e.Tick())
    assert node.core.role is Role.FOLLOWER
    assert e.RoleChanged(Role.FOLLOWER, Epoch(5), BrokerId(-1)) in effects


def test_a_leader_that_was_paused_does_not_count_earlier_contacts(make_node) -> None:
    node = leader(make_node, [])
    node.now += 900
    node.step(e.PeerAlive(BrokerId(2), Epoch(5)))
    node.now += 30_000
    node.step(e.Tick())
    assert node.core.role is Role.FOLLOWER


def test_an_unconfirmed_peer_gets_a_ping_of_its_own(make_node) -> None:
    node = leader(make_node, [])
    assert node.sent(node.step(e.HeartbeatDue(BrokerId(3)))) == [
        (3, RaftHeartbeat(Epoch(5), RaftIndex(0), 0))
    ]


def test_answers_that_claim_too_much_stop_the_replica(make_node) -> None:
    node = leader(make_node, [])
    with pytest.raises(RaftError, match="claims"):
        node.receive(2, answer(5, 7))


def test_appending_without_leading_is_an_internal_error(make_node) -> None:
    node = make_node()
    with pytest.raises(RaftError, match="without leading"):
        node.core.step(0, e.Appended(RaftIndex(1)))


def test_a_leader_without_room_for_its_no_op_steps_down(make_node) -> None:
    node = make_node(voters=(1,))
    node.step(e.CampaignRequested())
    node.core.step(0, e.VotePersisted(Epoch(0), BrokerId(1)))
    node.step(e.AppendFailed())
    assert (node.core.role, node.core.end) == (Role.FOLLOWER, 0)
