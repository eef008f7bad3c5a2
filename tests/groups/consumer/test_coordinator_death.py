"""The coordinator dies at any moment of a rebalance: who was in the group keeps its place.

Another coordinator knows what was committed and nothing else. So a member's write is there with
its answer lost, or is not there at all; in neither case may the member be told to start over.
"""

import random
from itertools import count
from typing import Any

import pytest
from effort import seeds

from moldau.model.errors import ErrorCode

PARTITIONS = 6
SESSION_SECONDS = 45
ROUNDS_MAX = 12


class Member:
    """As librdkafka: after a lost answer it sends all it knows, otherwise only what changed."""

    def __init__(self, name) -> None:
        self.name = name
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self.is_changed = False
        self.is_full = False
        self.lost: set[Any] = set()

    def send(self, world):
        fields: dict[str, Any] = {}
        if self.epoch == 0:
            fields["topics"] = ("t",)
        elif self.is_full:
            fields |= {"topics": ("t",), "rebalance_timeout_ms": 30_000, "owned": self._told(world)}
        elif self.is_changed:
            fields["owned"] = self._told(world)
        return world.send_beat(self.name, self.epoch, **fields)

    def heard(self, world, reply) -> None:
        assert reply.error is ErrorCode.NONE, f"{self.name} in epoch {self.epoch}: {reply}"
        self.is_full = self.is_changed = False
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            given = frozenset(reply.assignment.get(world.t, ()))
            self.is_changed = given != self.owned
            self.lost |= self.owned - given
            self.owned = given

    def missed(self) -> None:
        self.is_full = True

    def _told(self, world):
        return {world.t: self.owned} if self.owned else {}


class Deaths:
    """Runs heartbeats, and lets the coordinator die at the one that it is told."""

    def __init__(self, world, dies_at, *, is_stored) -> None:
        self.world = world
        self.dies_at = dies_at
        self.is_stored = is_stored
        self.beats = count()

    @property
    def is_over(self) -> bool:
        return self.dies_at is None

    def beat(self, member) -> None:
        if next(self.beats) != self.dies_at:
            member.heard(self.world, self.world.reply(member.send(self.world)))
            return
        self.dies_at = None
        self.world.hold_writes = True
        member.send(self.world)
        if self.is_stored:
            self.world.release()
        topic = self.world.t
        self.world = self.world.restarted()
        self.world.t = topic
        member.missed()


def settled(members) -> bool:
    shares = [len(member.owned) for member in members]
    return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1


def new_world(make_world):
    world = make_world()
    world.t = world.topics.create("t", PARTITIONS)
    return world


@pytest.mark.parametrize("is_stored", [True, False], ids=["answer lost", "write lost"])
@pytest.mark.parametrize("dies_at", range(1, 9))
def test_who_stays_keeps_its_place_whenever_the_coordinator_dies_in_a_join(
    make_world, dies_at, is_stored
):
    first, second = Member("first"), Member("second")
    deaths = Deaths(new_world(make_world), dies_at, is_stored=is_stored)
    deaths.beat(first)
    for _ in range(ROUNDS_MAX):
        deaths.beat(second)
        deaths.beat(first)
    assert deaths.is_over
    assert settled([first, second])
    assert len(first.lost) == PARTITIONS // 2
    assert not first.lost & first.owned
    assert not second.lost
    assert deaths.world.consumers()[0] == "Stable"


@pytest.mark.parametrize("seed", seeds(12))
def test_no_member_starts_over_however_often_the_coordinator_dies(make_world, seed):
    rng = random.Random(seed)
    world = new_world(make_world)
    members: list[Member] = []
    for turn in range(80):
        if len(members) < 5 and rng.random() < 0.1:
            members.append(Member(f"m{turn}"))
        for member in rng.sample(members, len(members)):
            # Two answers in a row that are stored and lost put a member two epochs behind: as in
            # Kafka, that is fenced.
            dies = rng.random() < 0.2 and not member.is_full
            deaths = Deaths(world, 0 if dies else None, is_stored=rng.random() < 0.5)
            deaths.beat(member)
            world = deaths.world
            owned = [index for one in members for index in one.owned]
            assert len(owned) == len(set(owned)), "two members have one partition"
        world.advance(rng.uniform(0, SESSION_SECONDS / 4))
    for _ in range(ROUNDS_MAX):
        for member in members:
            member.heard(world, world.reply(member.send(world)))
    assert settled(members)
    assert world.consumers()[2].keys() == {member.name for member in members}
