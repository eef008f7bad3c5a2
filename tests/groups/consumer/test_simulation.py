"""Well-behaved consumers that come, go and crash: nobody reads what another reads, all settles."""

import random

import pytest
from effort import seeds
from group_clients import Consumer, check_exclusive

from moldau.model.errors import ErrorCode


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
                leaving.leave(world)
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
                    consumer.lost_connection()
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
