"""What a thread reads before it is sent: when it comes back, and when nobody wants it any more."""

import asyncio
import threading
from typing import Any

import pytest
from raft_brokers import make_group, run

from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, RaftIndex
from moldau.raft.events import Role, SendAppend
from moldau.replica.cold_sends import ColdSends
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


class Read:
    """A look at the disk that ends when it is told to."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.go_on = threading.Event()
        self.began = threading.Event()
        self._is_broken = is_broken

    def run(self) -> None:
        self.began.set()
        assert self.go_on.wait(wait_seconds_max())
        if self._is_broken:
            raise RuntimeError("a defect")


class World:
    """A peer, and groups of which each is cold as often as it has reads left."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        none: Any = None
        self.peer = Peer(BrokerId(2), none, PeerHeartbeat(1, BrokerId(2)))
        self.ended: list[Read] = []
        self.groups: list[RaftGroup] = []
        self.reads: dict[RaftGroup, list[Read]] = {}
        for number in range(count):
            group = make_group(number)
            group.core.role = Role.LEADER
            self.groups.append(group)
            self.reads[group] = [Read(), Read()]
            monkeypatch.setattr(
                group.view,
                "begin_prefetch",
                lambda *_, group=group: next(iter(self.reads[group]), None),
            )
            monkeypatch.setattr(group.log, "end_check", self.ended.append)
        self.turns = 0
        self.cold = ColdSends(loop=asyncio.get_running_loop(), stepper=none, on_read=self._count)

    def _count(self) -> None:
        self.turns += 1

    def ask(self, group: RaftGroup) -> SendAppend:
        """As the end of a turn does: what waits is sent, or held back."""
        bulk = SendAppend(BrokerId(2), Epoch(1), RaftIndex(0), NO_EPOCH, 1000)
        self.peer.send_later(group, bulk)
        self.peer.waiting.pop(group)
        assert self.cold.defer_if_cold(self.peer, group, bulk)
        return bulk

    async def finish(self, group: RaftGroup) -> None:
        """Its first read."""
        turns = self.turns
        self.reads[group][0].go_on.set()
        await until(lambda: self.turns > turns, "it was read")


def test_it_comes_back_once_it_was_read_and_goes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        world = World(1, monkeypatch)
        (group,) = world.groups
        bulk = world.ask(group)
        assert not world.peer.waiting
        await world.finish(group)
        assert world.peer.waiting == {group: bulk}
        assert world.ended == [world.reads[group][0]]
        # Cold again, for memory is short: sent all the same.
        assert not world.cold.defer_if_cold(world.peer, group, bulk)
        # What comes next is looked at anew.
        world.reads[group].pop(0)
        world.ask(group)
        await world.finish(group)

    run(play())


@pytest.mark.parametrize("how", ["link lost", "not the leader", "asked anew"])
def test_what_is_not_wanted_any_more_does_not_come_back(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        world = World(1, monkeypatch)
        (group,) = world.groups
        world.ask(group)
        newer = SendAppend(BrokerId(2), Epoch(2), RaftIndex(0), NO_EPOCH, 1000)
        expected = {}
        if how == "link lost":
            world.peer.drop()
        elif how == "not the leader":
            world.peer.forget(group)
        else:
            world.peer.send_later(group, newer)
            expected = {group: newer}
        await world.finish(group)
        assert world.peer.waiting == expected
        assert not world.peer.cold
        assert not world.peer.warm

    run(play())


def test_only_a_few_are_read_at_a_time_and_the_next_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        world = World(6, monkeypatch)
        for group in world.groups:
            world.ask(group)
        assert world.peer.reading == set(world.groups[:4])
        assert list(world.peer.cold) == world.groups
        await world.finish(world.groups[1])
        assert world.peer.reading == {*world.groups[:1], *world.groups[2:5]}
        for place in (0, 2, 3, 4, 5):
            await world.finish(world.groups[place])
        assert set(world.peer.waiting) == set(world.groups)
        assert not world.peer.reading

    run(play())


def test_an_internal_error_in_the_thread_holds_nothing_back_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        world = World(1, monkeypatch)
        (group,) = world.groups
        world.reads[group] = [Read(is_broken=True)]
        bulk = world.ask(group)
        await world.finish(group)
        assert world.peer.waiting == {group: bulk}
        assert not world.ended

    run(play())
    assert "a defect" in caplog.text
