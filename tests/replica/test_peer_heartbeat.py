"""One heartbeat speaks for many groups, but only for those that the other side has confirmed."""

import pytest
from raft_brokers import make_group

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, RaftIndex
from moldau.raft.progress import Progress
from moldau.replica.peer_heartbeat import (
    NEVER,
    Heartbeat,
    PeerHeartbeat,
    decode_heartbeat,
    encode_heartbeat,
)

FIVE = Epoch(5)


class Pair:
    """Broker 1 leads, broker 2 follows; both know the same groups."""

    def __init__(self, count: int) -> None:
        self.groups = [make_group(number) for number in range(count)]
        self.by_wire = {group.wire: group for group in self.groups}
        self.one = PeerHeartbeat(session=11, peer=BrokerId(2))
        self.two = PeerHeartbeat(session=22, peer=BrokerId(1))

    def confirm_all(self) -> None:
        for group in self.groups:
            self.one.lead(group)
            self.one.confirm(group, FIVE)

    def heartbeat(self, now: int) -> Heartbeat:
        """From the leader to the follower, through the codec."""
        heartbeat = decode_heartbeat(memoryview(encode_heartbeat(self.one.compose())))
        self.commits = self.two.take(heartbeat, now, self.by_wire)
        self.two.take_acknowledgement(heartbeat, now, self.by_wire)
        if heartbeat.listed is not None:
            for group in self.two.listed:
                self.two.check(group, FIVE)
        return heartbeat

    def answer(self, now: int) -> Heartbeat:
        heartbeat = decode_heartbeat(memoryview(encode_heartbeat(self.two.compose())))
        self.one.take(heartbeat, now, self.by_wire)
        self.one.take_acknowledgement(heartbeat, now, self.by_wire)
        return heartbeat


def test_the_list_is_sent_once_and_then_stands_for_all_its_groups() -> None:
    pair = Pair(3)
    pair.confirm_all()
    assert pair.heartbeat(100).listed is not None
    assert pair.heartbeat(200).listed is None
    assert [pair.two.leader_heard_at(group, FIVE) for group in pair.groups] == [200, 200, 200]
    pair.answer(250)
    assert [pair.one.acknowledged_at(group, FIVE) for group in pair.groups] == [250, 250, 250]
    assert pair.two.leader_heard_at(pair.groups[0], Epoch(6)) == NEVER
    assert pair.one.acknowledged_at(pair.groups[0], Epoch(4)) == NEVER


def test_a_group_that_was_never_confirmed_gets_no_sign_of_life_from_it() -> None:
    pair = Pair(2)
    pair.confirm_all()
    pair.one.lead(pair.groups[1])
    pair.heartbeat(100)
    pair.answer(150)
    assert pair.two.leader_heard_at(pair.groups[1], FIVE) == NEVER
    assert pair.one.acknowledged_at(pair.groups[1], FIVE) == NEVER
    assert list(pair.one.unconfirmed) == [pair.groups[1]]


def test_an_answer_to_an_earlier_list_says_nothing_of_a_group_added_since() -> None:
    pair = Pair(2)
    pair.one.lead(pair.groups[0])
    pair.one.confirm(pair.groups[0], FIVE)
    pair.heartbeat(100)
    pair.one.lead(pair.groups[1])
    pair.one.confirm(pair.groups[1], FIVE)
    pair.answer(150)
    assert pair.one.acknowledged_at(pair.groups[0], FIVE) == 150
    assert pair.one.acknowledged_at(pair.groups[1], FIVE) == NEVER
    pair.heartbeat(200)
    pair.answer(250)
    assert pair.one.acknowledged_at(pair.groups[1], FIVE) == 250


def test_a_group_that_follows_another_leader_is_refused_and_leaves_the_list() -> None:
    pair = Pair(2)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.two.check(pair.groups[1], NO_EPOCH)
    assert pair.answer(150).refused == ((pair.groups[1].wire, FIVE),)
    assert list(pair.one.unconfirmed) == [pair.groups[1]]
    assert pair.one.acknowledged_at(pair.groups[1], FIVE) == NEVER
    listed = pair.heartbeat(200).listed
    assert listed == ((pair.groups[0].wire, FIVE),)
    assert pair.answer(250).refused == ()
    pair.one.confirm(pair.groups[1], FIVE)
    assert len(pair.heartbeat(300).listed or ()) == 2


def test_a_group_that_the_follower_does_not_have_is_refused() -> None:
    pair = Pair(2)
    pair.confirm_all()
    del pair.by_wire[pair.groups[0].wire]
    pair.heartbeat(100)
    assert pair.answer(150).refused == ((pair.groups[0].wire, FIVE),)


def test_a_follower_without_heartbeats_acknowledges_nothing_new() -> None:
    pair = Pair(1)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.answer(150)
    # Its heartbeats still arrive, this broker's do not.
    pair.answer(300)
    pair.answer(450)
    assert pair.one.acknowledged_at(pair.groups[0], FIVE) == 150


def test_answers_to_another_process_count_for_nothing() -> None:
    pair = Pair(1)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.one = PeerHeartbeat(session=12, peer=BrokerId(2))
    pair.confirm_all()
    pair.answer(150)
    assert pair.one.acknowledged_at(pair.groups[0], FIVE) == NEVER


def test_after_a_lost_link_everything_is_confirmed_and_listed_again() -> None:
    pair = Pair(2)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.answer(150)
    pair.one.link_lost()
    pair.two.peer_disconnected()
    assert pair.two.leader_heard_at(pair.groups[0], FIVE) == NEVER
    assert pair.one.acknowledged_at(pair.groups[0], FIVE) == NEVER
    assert set(pair.one.unconfirmed) == set(pair.groups)
    pair.one.confirm(pair.groups[0], FIVE)
    assert pair.heartbeat(200).listed == ((pair.groups[0].wire, FIVE),)


def test_a_heartbeat_without_a_list_that_was_never_sent_is_refused() -> None:
    pair = Pair(1)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.two.peer_disconnected()
    with pytest.raises(PeerProtocolError, match="unknown list version"):
        pair.heartbeat(200)


def test_a_commit_is_sent_once_and_again_if_the_heartbeat_was_dropped() -> None:
    pair = Pair(2)
    pair.confirm_all()
    pair.heartbeat(100)
    assert {group for group, _, _ in pair.commits} == set(pair.groups)
    pair.groups[1].core.commit = RaftIndex(9)
    pair.one.note_commit(pair.groups[1])
    pair.heartbeat(200)
    assert pair.commits == [(pair.groups[1], FIVE, 9)]
    assert pair.heartbeat(300).commits == ()
    pair.one.note_commit(pair.groups[1])
    pair.one.compose()
    pair.one.not_sent()
    pair.heartbeat(400)
    assert (pair.groups[1], FIVE, 9) in pair.commits
    pair.one.note_commit(pair.groups[1])
    pair.one.commit_sent(pair.groups[1])
    assert pair.heartbeat(500).commits == ()


def test_a_commit_of_a_group_beyond_the_list_is_refused() -> None:
    pair = Pair(1)
    pair.confirm_all()
    heartbeat = pair.one.compose()._replace(commits=((1, RaftIndex(3)),))
    with pytest.raises(PeerProtocolError, match="group 1 of 1"):
        pair.two.take(heartbeat, 100, pair.by_wire)


def test_a_removed_group_is_refused_and_not_led() -> None:
    pair = Pair(2)
    pair.confirm_all()
    pair.heartbeat(100)
    pair.two.forget(pair.groups[0])
    assert pair.answer(150).refused == ((pair.groups[0].wire, FIVE),)
    pair.one.forget(pair.groups[1])
    assert pair.heartbeat(200).listed == ()


def test_a_commit_is_sent_until_the_peer_has_what_is_committed() -> None:
    pair = Pair(1)
    pair.confirm_all()
    core = pair.groups[0].core
    core.commit = RaftIndex(9)
    known = core.progress[BrokerId(2)] = Progress(next_index=RaftIndex(0), end=RaftIndex(0), now=0)
    known.received = RaftIndex(5)
    for now in (100, 200):
        pair.heartbeat(now)
        # Its entries may still be behind this heartbeat, which goes ahead.
        assert pair.commits == [(pair.groups[0], FIVE, RaftIndex(9))]
    known.received = RaftIndex(9)
    pair.heartbeat(300)
    assert len(pair.commits) == 1
    pair.heartbeat(400)
    assert pair.commits == []
