"""Well-behaved consumers that come, go and crash: nobody reads what another reads, all settles."""

import random

import pytest
from effort import seeds
from group_clients import ClassicConsumer, Consumer, check_exclusive

from moldau.model.errors import ErrorCode


class Company:
    """The members of one group, and those that join it: of the newer protocol, or of both."""

    def __init__(self, rng, *, is_mixed):
        self.rng = rng
        self.is_mixed = is_mixed
        self.keeps = rng.random() < 0.5
        self.members = []

    def join(self, turn, instance=None):
        one: ClassicConsumer | Consumer
        topics = self.rng.choice([("t",), ("u",), ("t", "u")])
        if instance is None and self.rng.random() < 0.3:
            instance = f"i{turn}"
        if self.is_mixed and self.rng.random() < 0.5:
            one = ClassicConsumer(f"c{turn}", topics, instance, keeps=self.keeps)
        else:
            one = Consumer(f"m{turn}", topics, instance)
        self.members.append(one)

    def leave(self, world):
        self.members.pop(self.rng.randrange(len(self.members))).leave(world)

    def crash(self, turn):
        """Gone without a word: its session ends it, or a successor does."""
        gone = self.members.pop(self.rng.randrange(len(self.members)))
        if gone.instance is not None and isinstance(gone, ClassicConsumer):
            self.join(turn, gone.instance)

    def restart(self, world, turn):
        """A static member that says it will be back."""
        one = self.rng.choice(self.members)
        if one.instance is not None and isinstance(one, Consumer) and one.epoch > 0:
            world.send_beat(one.name, -2, instance_id=one.instance)
            self.members.remove(one)
            self.join(turn, one.instance)

    def step(self, world, share):
        for one in self.rng.sample(self.members, len(self.members)):
            if self.rng.random() < share:
                one.step(world)
                check_exclusive(self.members)


def live(world, company, rng):
    """Everything that can happen to a group; the world in the end, which may be another."""
    for turn in range(rng.randrange(60, 160)):
        match rng.randrange(15):
            case 0 | 1 | 2 if len(company.members) < 7:
                company.join(turn)
            case 3 if company.members:
                company.leave(world)
            case 4 if company.members:
                company.crash(turn)
            case 5 if company.members:
                company.restart(world, turn)
            case 6:
                world.hold_writes = rng.random() < 0.6
                world.take([])
            case 7 if world.held:
                world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 8 if rng.random() < 0.3:
                world.topics.create("t", world.topics.topic("t").partitions + 1)
            case 9 if not world.held and rng.random() < 0.5:
                world = world.restarted()
                for one in company.members:
                    one.lost_connection()
        company.step(world, 0.7)
        # A log that stands still for longer than a timeout costs members their place.
        world.advance(rng.choice([0.0, 0.1] if world.hold_writes else [0.0, 0.5, 3.0]))
    world.release()
    return world


def settle(world, company):
    for _ in range(150):
        company.step(world, 1)
        world.advance(1.0)
    read = {(t, i) for one in company.members for t, some in one.reads.items() for i in some}
    assert len(read) == sum(size.partitions for size in world.topics.sizes.values())


def make(make_world, seed, *, is_mixed):
    rng = random.Random(seed)
    world = make_world(initial_rebalance_delay_ms=rng.choice([0, 3000]))
    for name, size in (("t", 5), ("u", 3)):
        world.topics.create(name, size)
    return world, Company(rng, is_mixed=is_mixed), rng


@pytest.mark.parametrize("is_mixed", [False, True], ids=["newer", "both"])
@pytest.mark.parametrize("seed", seeds(16))
def test_no_partition_is_read_twice_and_all_are_read_in_the_end(make_world, seed, is_mixed):
    world, company, rng = make(make_world, seed, is_mixed=is_mixed)
    world = live(world, company, rng)
    company.members.append(Consumer("last", ("t", "u")))
    settle(world, company)
    state, _, members = world.consumers()
    assert state == "Stable"
    assert set(members) == {one.name for one in company.members}
    for one in company.members:
        assert members[one.name] == (one.epoch, one.reads)
    assert world.restarted().consumers() == world.consumers()


@pytest.mark.parametrize("seed", seeds(16))
def test_a_group_whose_last_members_are_classic_is_a_classic_one_in_the_end(make_world, seed):
    world, company, rng = make(make_world, seed, is_mixed=True)
    world = live(world, company, rng)
    for one in [one for one in company.members if isinstance(one, Consumer)]:
        company.members.remove(one)
        one.leave(world)
    company.members.append(ClassicConsumer("last", ("t", "u"), None, keeps=company.keeps))
    settle(world, company)
    described = world.coordinator.describe("g")
    assert described.state == "Stable"
    assert {one.member_id for one in described.members} == {one.name for one in company.members}
    assert len({one.epoch for one in company.members}) == 1
    assert world.restarted().coordinator.describe("g") == described
