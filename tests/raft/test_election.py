"""Who stands for election, who gets a vote, and that it is durable before anybody hears of it."""

import pytest

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft import events as e
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.raft.messages import RaftHeartbeat, TimeoutNow, VoteRequest, VoteResponse


def asked(
    epoch: int,
    end: int = 0,
    last: int = -1,
    *,
    pre: bool = False,
    transfer: bool = False,
    log: int = FIRST_LOG,
):
    return VoteRequest(Epoch(epoch), RaftIndex(end), Epoch(last), pre, transfer, LogId(log))


def test_a_follower_asks_before_it_raises_the_epoch(make_node) -> None:
    node = make_node(epochs=[3, 3], epoch=3)
    node.now = node.core.deadline
    effects = node.step(e.Tick())
    assert node.sent(effects) == [
        (2, asked(4, 2, 3, pre=True)),
        (3, asked(4, 2, 3, pre=True)),
    ]
    assert (node.core.role, node.core.epoch) == (Role.PRE_CANDIDATE, 3)


def test_an_early_tick_does_nothing(make_node) -> None:
    node = make_node()
    node.now = node.core.deadline - 1
    assert node.step(e.Tick()) == []


def test_a_candidate_asks_for_votes_only_when_its_own_is_durable(make_node) -> None:
    node = make_node(epoch=3)
    node.step(e.CampaignRequested())
    effects = node.receive(2, VoteResponse(Epoch(4), True, True))
    assert node.sent(effects) == []
    assert e.PersistVote(Epoch(4), BrokerId(1)) in effects
    assert node.sent(node.persist()) == [(2, asked(4)), (3, asked(4))]


def test_a_candidate_counts_its_own_vote_only_when_it_is_durable(make_node) -> None:
    node = make_node(voters=(1,))
    effects = node.step(e.CampaignRequested())
    assert e.PersistVote(Epoch(0), BrokerId(1)) in effects
    assert not node.core.is_leader
    node.persist()
    assert node.core.is_leader


def test_votes_of_another_election_do_not_count(make_node) -> None:
    node = make_node(epoch=3)
    node.step(e.CampaignRequested())
    node.receive(2, VoteResponse(Epoch(3), True, True))
    node.receive(3, VoteResponse(Epoch(5), True, True))
    assert node.core.role is Role.PRE_CANDIDATE


def test_one_voter_twice_is_no_majority(make_node) -> None:
    node = make_node(voters=(1, 2, 3, 4, 5))
    node.step(e.CampaignRequested())
    for _ in range(3):
        node.receive(2, VoteResponse(Epoch(0), True, True))
    assert node.core.role is Role.PRE_CANDIDATE


def test_a_vote_is_answered_when_it_is_durable(make_node) -> None:
    node = make_node()
    assert node.sent(node.receive(2, asked(7))) == []
    assert node.sent(node.persist()) == [(2, VoteResponse(Epoch(7), True, False))]


def test_a_voter_votes_once_per_epoch(make_node) -> None:
    node = make_node()
    node.receive(2, asked(7))
    node.persist()
    assert node.sent(node.receive(3, asked(7))) == [(3, VoteResponse(Epoch(7), False, False))]
    assert node.sent(node.receive(2, asked(7))) == [(2, VoteResponse(Epoch(7), True, False))]


@pytest.mark.parametrize(
    ("end", "last", "granted"),
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False)],
)
def test_only_a_log_as_new_as_the_own_gets_a_vote(
    make_node, end: int, last: int, granted: bool
) -> None:
    node = make_node(epochs=[1, 2], epoch=2)
    (answer,) = node.sent(node.receive(2, asked(7, end, last, pre=True)))
    assert answer[1].is_granted is granted
    node.receive(2, asked(7, end, last))
    (answer,) = node.sent(node.persist())
    assert answer[1].is_granted is granted


def test_a_follower_in_contact_with_its_leader_ignores_candidates(make_node) -> None:
    node = make_node(epoch=4)
    node.receive(3, RaftHeartbeat(Epoch(4), RaftIndex(0), 0))
    node.now += node.core.config.election_ms_min - 1
    assert node.receive(2, asked(9, pre=True)) == []
    assert node.receive(2, asked(9)) == []
    assert node.core.epoch == 4
    node.now += 1
    assert node.sent(node.receive(2, asked(9, pre=True))) == [
        (2, VoteResponse(Epoch(9), True, True))
    ]


def test_elections_that_fail_move_apart_until_there_is_a_leader(make_node) -> None:
    node = make_node()
    config = node.core.config
    waits = []
    for _ in range(40):
        waits.append(node.core.deadline - node.now)
        node.now = node.core.deadline
        node.step(e.Tick())
    assert max(waits[:3]) < config.election_ms_max < max(waits)
    span = config.election_ms_max - config.election_ms_min
    assert config.election_ms_min <= min(waits)
    assert max(waits) < config.election_ms_min + 4 * span
    node.receive(3, RaftHeartbeat(Epoch(0), RaftIndex(0), 0))
    assert node.core.deadline - node.now < config.election_ms_max


def test_a_leader_ignores_candidates(make_node) -> None:
    node = make_node()
    node.elect()
    assert node.receive(2, asked(9, 9, 9)) == []
    assert node.core.is_leader


def test_the_target_of_a_transfer_gets_votes_at_once(make_node) -> None:
    node = make_node(epoch=4)
    node.receive(3, RaftHeartbeat(Epoch(4), RaftIndex(0), 0))
    node.receive(2, asked(5, transfer=True))
    assert node.sent(node.persist()) == [(2, VoteResponse(Epoch(5), True, False))]


def test_asked_to_stand_a_voter_skips_the_pre_vote(make_node) -> None:
    node = make_node(epoch=4)
    node.receive(3, RaftHeartbeat(Epoch(4), RaftIndex(0), 0))
    node.receive(3, TimeoutNow(Epoch(4)))
    assert (node.core.role, node.core.epoch) == (Role.CANDIDATE, 5)
    assert node.sent(node.persist()) == [(2, asked(5, transfer=True)), (3, asked(5, transfer=True))]


def test_a_stale_candidate_is_sent_the_epoch(make_node) -> None:
    node = make_node(epoch=4)
    assert node.sent(node.receive(2, asked(4, pre=True))) == [
        (2, VoteResponse(Epoch(4), False, True))
    ]
    assert node.sent(node.receive(2, asked(3))) == [(2, VoteResponse(Epoch(4), False, False))]


def test_a_broker_with_another_log_neither_votes_nor_stands(make_node) -> None:
    node = make_node(log_id=8)
    node.receive(2, asked(7))
    assert node.sent(node.persist()) == [(2, VoteResponse(Epoch(7), False, False))]
    node.step(e.CampaignRequested())
    assert node.core.role is Role.FOLLOWER


def test_the_vote_of_a_new_log_is_asked_for_and_given_by_its_id(make_node) -> None:
    voter = make_node(log_id=8)
    voter.receive(2, asked(7, log=8))
    assert voter.sent(voter.persist()) == [(2, VoteResponse(Epoch(7), True, False))]
    # A voter whose log is the first one gives nothing to who counts on a later one.
    voter = make_node()
    voter.receive(2, asked(7, log=8))
    assert voter.sent(voter.persist()) == [(2, VoteResponse(Epoch(7), False, False))]


def test_who_is_no_voter_does_not_stand(make_node) -> None:
    node = make_node(voters=(2, 3))
    node.step(e.CampaignRequested())
    assert node.core.role is Role.FOLLOWER
    assert node.core.deadline > 1 << 60


def test_who_removes_itself_stands_until_that_is_committed(make_node) -> None:
    node = make_node()
    node.elect()
    node.core.progress[BrokerId(2)].match = node.core.end
    node.flush()
    node.step(e.MembershipChangeRequested(Members((BrokerId(2), BrokerId(3)))))
    node.now += 10_000
    node.step(e.Tick())
    assert node.core.role is Role.FOLLOWER
    node.step(e.CampaignRequested())
    role: Role = node.core.role
    assert role is Role.PRE_CANDIDATE


def test_an_epoch_found_in_the_log_counts_without_a_vote_of_it(make_node) -> None:
    node = make_node(epochs=[1, 6], epoch=3)
    assert (node.core.epoch, node.core.voted_for) == (6, -1)


def test_no_follower_waits_for_a_leader_whose_process_has_ended(make_node) -> None:
    node = make_node(epochs=[3, 3], epoch=3)
    node.receive(2, RaftHeartbeat(Epoch(3), RaftIndex(0), 0))
    assert node.core.leader == 2
    shortest = node.core.config.election_ms_min
    waits = node.core.deadline - node.now
    node.step(e.PeerExited(BrokerId(3)))
    assert node.core.deadline - node.now == waits
    node.step(e.PeerExited(BrokerId(2)))
    assert node.core.deadline - node.now == waits - shortest
    # Others get a vote at once.
    effects = node.receive(3, asked(4, 2, 3, pre=True))
    assert node.sent(effects) == [(3, VoteResponse(Epoch(4), True, True))]


def test_a_leader_that_shows_itself_after_all_is_followed_again(make_node) -> None:
    node = make_node(epochs=[3, 3], epoch=3)
    node.receive(2, RaftHeartbeat(Epoch(3), RaftIndex(0), 0))
    node.step(e.PeerExited(BrokerId(2)))
    node.receive(2, RaftHeartbeat(Epoch(3), RaftIndex(0), 1))
    assert node.core.deadline - node.now >= node.core.config.election_ms_min
    effects = node.receive(3, asked(4, 2, 3, pre=True))
    assert node.sent(effects) == []
