"""Whatever requests come, in whatever order: no exception, and the log tells the same state."""

import random

import pytest
from effort import seeds

from moldau.groups.events import ConsumerHeartbeat
from moldau.groups.group import Group
from moldau.groups.records import decode
from moldau.model.errors import ErrorCode

MEMBERS = ["", "a", "b", "c", "c-1", "\x00ü"]
PATTERNS = [None, None, None, "", "t.*", "(a*)*b", "(", "[", "t{2"]


def any_owned(rng, world):
    if rng.random() < 0.3:
        return None
    topics = [size.topic_id for size in world.topics.sizes.values()] + [b"?" * 16]
    return {
        topic: frozenset(rng.sample(range(-1, 6), rng.randrange(1, 4)))
        for topic in rng.sample(topics, rng.randrange(len(topics) + 1))
    }


def any_beat(rng, world, member_id):
    epochs = [-3, -2, -1, 0, 0, 0, 1, 2, 3, rng.randrange(30), 2**31 - 1]
    current = world.consumers()[2].get(member_id)
    epoch = current[0] if current is not None and rng.random() < 0.5 else rng.choice(epochs)
    joins = epoch == 0 and rng.random() < 0.8
    world.send(
        ConsumerHeartbeat,
        group_id="g",
        member_id=member_id,
        member_epoch=epoch,
        instance_id=rng.choice([None, None, "i", "j", ""]),
        rack=rng.choice([None, "r"]),
        rebalance_timeout_ms=30_000 if joins else rng.choice([-1, 0, 5_000, -(2**31)]),
        topics=rng.choice([("t",), ("u", "t", "t"), ("none",), ()]) if joins else None,
        pattern=rng.choice(PATTERNS),
        assignor=rng.choice([None, None, "uniform", "range", "other"]),
        owned={} if joins else any_owned(rng, world),
        makes_member_id=rng.random() < 0.5,
    )


def any_step(rng, world):
    member_id = rng.choice(MEMBERS)
    match rng.randrange(16):
        case 0:
            world.topics.create(rng.choice("tuv"), rng.randrange(0, 6))
        case 1:
            world.topics.delete(rng.choice("tuv"))
        case 2:
            world.advance(rng.choice([0.1, 20, 50]))
        case 3:
            world.commit({world.tp("t"): 1}, member_id, rng.choice([-1, 0, 1, 2]))
        case 4:
            world.delete_groups("g")
        case 5:
            world.send_join(rng.choice([member_id, ""]), session_timeout_ms=6_000)
        case 6:
            world.leave(member_id)
        case 7:
            world.heartbeat(member_id, rng.randrange(3))
        case 8:
            world.hold_writes = True
        case 9 | 10:
            world.release()
        case 11 if world.held:
            world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
        case _:
            any_beat(rng, world, member_id)


def replayed(log, rng):
    """As a loading does it: the last record of each key, in any order."""
    latest = dict(log)
    group = Group("g")
    pairs = [pair for pair in latest.items() if pair[1] is not None]
    rng.shuffle(pairs)
    for key, value in pairs:
        group.apply(decode(key, value))
    return group


def facts(group):
    consumer = group.consumer
    if consumer is None:
        return group.stored, group.offsets, None
    owners = {topic: dict(owners) for topic, owners in consumer._owners.items()}
    return (
        group.stored,
        group.offsets,
        (consumer.epoch, consumer.members, consumer.target_epoch, consumer.targets),
        (consumer.currents, owners, consumer._static),
    )


@pytest.mark.parametrize("seed", seeds(25))
def test_arbitrary_requests_are_answered_and_the_log_tells_the_same_state(make_world, seed):
    rng = random.Random(seed)
    world = make_world(consumer_group_size_max=3)
    world.topics.create("t", 4)
    for _ in range(150):
        any_step(rng, world)
        if not world.held:
            known = world.coordinator._runtime.groups.get("g") or Group("g")
            assert facts(replayed(world.log, rng)) == facts(known), f"seed={seed}"
    world.release()
    world.advance(600)
    sent = next(world.requests)
    assert set(world.replies) >= set(range(1, sent)), "somebody was not answered"
