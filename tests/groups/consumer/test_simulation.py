"""Well-behaved consumers that come, go and crash: nobody reads what another reads, all settles."""

import random

import pytest
from effort import seeds

from moldau.model.errors import ErrorCode

START_OVER = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}
TRY_AGAIN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.NOT_COORDINATOR,
}


class Consumer:
    """What a client does. `reads` is what it fetches from, and no other may at the same time."""

    def __init__(self, name, topics, instance=None) -> None:
        self.name = name
        self.topics = topics
        self.instance = instance
        self.epoch = 0
        self.reads = {}
        self.waiting = None
        self.tells = True

    def step(self, world) -> None:
        if self.waiting is not None:
            reply = world.reply(self.waiting)
            if reply is None:
                return
            self.waiting = None
            self.heard(reply)
            return
        fields = {"instance_id": self.instance}
        if self.epoch == 0:
            self.reads = {}
            fields["topics"] = self.topics
        elif self.tells:
            fields["owned"] = self.reads
        self.tells = False
        self.waiting = world.send_beat(self.name, self.epoch, **fields)

    def heard(self, reply) -> None:
        if reply.error in START_OVER:
            # What it must abandon it abandons before it asks again.
            self.epoch, self.reads = 0, {}
        elif reply.error is not ErrorCode.NONE:
            assert reply.error in TRY_AGAIN
            self.tells = True
        else:
            self.epoch = reply.member_epoch
            if reply.assignment is not None and reply.assignment != self.reads:
                self.reads = dict(reply.assignment)
                self.tells = True


def check_exclusive(consumers) -> None:
    taken = set()
    for consumer in consumers:
        for topic, indexes in consumer.reads.items():
            for index in indexes:
                assert (topic, index) not in taken, "two consumers read one partition"
                taken.add((topic, index))


@pytest.mark.parametrize("seed", seeds(16))
def test_no_partition_is_read_twice_and_all_are_read_in_the_end(make_world, seed):
    rng = random.Random(seed)
    world = make_world()
    for name, size in (("t", 5), ("u", 3)):
        world.topics.create(name, size)
    consumers = []
    for turn in range(rng.randrange(60, 160)):
        match rng.randrange(14):
            case 0 | 1 | 2 if len(consumers) < 7:
                topics = rng.choice([("t",), ("u",), ("t", "u")])
                instance = f"i{turn}" if rng.random() < 0.3 else None
                consumers.append(Consumer(f"m{turn}", topics, instance))
            case 3 if consumers:
                leaving = consumers.pop(rng.randrange(len(consumers)))
                world.send_beat(leaving.name, -1)
            case 4 if consumers:
                # Gone without a word: its session ends it.
                consumers.pop(rng.randrange(len(consumers)))
            case 5 if consumers:
                back = consumers[rng.randrange(len(consumers))]
                if back.instance is not None and back.epoch > 0:
                    world.send_beat(back.name, -2, instance_id=back.instance)
                    consumers.remove(back)
                    consumers.append(Consumer(f"m{turn}", back.topics, back.instance))
            case 6:
                world.hold_writes = rng.random() < 0.6
                world.take([])
            case 7 if world.held:
                world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 8 if rng.random() < 0.3:
                world.topics.create("t", world.topics.topic("t").partitions + 1)
            case 9 if not world.held and rng.random() < 0.5:
                world = world.restarted()
                for consumer in consumers:
                    consumer.waiting, consumer.tells = None, True
        for consumer in rng.sample(consumers, len(consumers)):
            if rng.random() < 0.7:
                consumer.step(world)
                check_exclusive(consumers)
        # A log that stands still for longer than a timeout costs members their place.
        world.advance(rng.choice([0.0, 0.1] if world.hold_writes else [0.0, 0.5, 3.0]))
    consumers.append(Consumer("last", ("t", "u")))
    world.release()
    for _ in range(120):
        for consumer in consumers:
            consumer.step(world)
            check_exclusive(consumers)
        world.advance(1.0)
    state, _, members = world.consumers()
    assert state == "Stable", f"seed={seed}"
    assert set(members) == {consumer.name for consumer in consumers}
    for consumer in consumers:
        assert members[consumer.name] == (consumer.epoch, consumer.reads)
    read = {(t, i) for consumer in consumers for t, some in consumer.reads.items() for i in some}
    assert len(read) == sum(size.partitions for size in world.topics.sizes.values())
    assert world.restarted().consumers() == world.consumers()
