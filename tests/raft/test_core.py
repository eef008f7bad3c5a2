"""Shortcuts of idle groups come to what the steps come to that they stand for."""

import random

import pytest

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, RaftIndex
from moldau.raft import events as e
from moldau.raft.messages import AppendRequest, AppendResponse

EPOCH = 5


class Twins:
    """Two cores with the same past: one takes every step, the other shortcuts."""

    def __init__(self, make_node, *, leads: bool) -> None:
        self.nodes = [make_node(epochs=[1, 1], epoch=EPOCH - 1) for _ in range(2)]
        self.leads = leads
        self.rested = 0
        for node in self.nodes:
            if leads:
                for effect in node.elect():
                    if isinstance(effect, e.SendAppend):
                        node.step(e.AppendSent(effect.peer, effect.epoch, node.core.end, 10))
                node.flush()
            else:
                message = AppendRequest(Epoch(EPOCH), RaftIndex(2), Epoch(1), (), RaftIndex(2))
                node.receive(2, message)
        self.check()

    def tick(self, now: int) -> None:
        plain, quick = self.nodes
        plain.now = quick.now = now
        effects = plain.step(e.Tick()) if plain.core.deadline <= now else []
        if quick.core.rests(now):
            self.rested += 1
            assert effects == []
        else:
            assert quick.step(e.Tick()) == effects
        self.check()

    def contact(self, peer: BrokerId, at: int) -> None:
        plain, quick = self.nodes
        epoch = plain.core.epoch
        event: e.Event = e.PeerAlive(peer, epoch)
        if not self.leads:
            event = e.LeaderAlive(peer, epoch, plain.log.start_index)
        assert plain.core.step(at, event) == []
        if not self.leads or quick.core.is_leader:
            quick.core.heard_from(peer, at)
        self.check()

    def respond(self, peer: BrokerId, now: int) -> None:
        """The follower has all entries."""
        end = self.nodes[0].core.end
        message = AppendResponse(
            epoch=Epoch(EPOCH),
            is_accepted=True,
            rejected_start=end,
            matched=end,
            flushed=end,
            hint_epoch=Epoch(EPOCH),
            log_id=FIRST_LOG,
        )
        plain, quick = self.nodes
        plain.now = quick.now = now
        assert plain.receive(peer, message) == quick.receive(peer, message)
        self.check()

    def check(self) -> None:
        plain, quick = (self._state(node.core) for node in self.nodes)
        assert plain == quick

    def _state(self, core) -> tuple[object, ...]:
        progress = [
            (peer, *(getattr(found, name) for name in type(found).__slots__))
            for peer, found in core.progress.items()
        ]
        return (
            core.role,
            core.epoch,
            core.leader,
            core.commit,
            core.deadline,
            core.last_contact_at,
            progress,
        )


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_a_shortcut_leaves_the_core_as_the_step_would(make_node, seed: int, leads: bool) -> None:
    rng = random.Random(seed)
    twins = Twins(make_node, leads=leads)
    peers = [BrokerId(2), BrokerId(3)]
    # Sometimes one peer is silent, sometimes both are.
    heard = rng.choice((peers, peers, peers[:1], []))
    now = 0
    for _ in range(60):
        now += rng.choice((20, 150, 400, 900))
        if heard and rng.random() < 0.8:
            # Times of contacts are those of heartbeats: a little ago.
            for peer in heard if leads else peers[:1]:
                twins.contact(peer, now - rng.randrange(20))
        if leads and heard and rng.random() < 0.2 and twins.nodes[0].core.is_leader:
            twins.respond(rng.choice(heard), now)
        twins.tick(now)
    if len(heard) == len(peers):
        assert twins.rested > 10


def test_a_leader_without_a_majority_does_not_rest(make_node) -> None:
    twins = Twins(make_node, leads=True)
    for peer in (2, 3):
        twins.respond(BrokerId(peer), 10)
    for now in (500, 900):
        twins.tick(now)
    assert twins.rested == 2
    twins.tick(5000)
    assert (twins.rested, twins.nodes[1].core.is_leader) == (2, False)
