"""Whatever requests come, in whatever order: no exception, and the log tells the same state."""

import random

import pytest
from effort import seeds
from group_clients import subscription

from moldau.groups.consumer_protocol import assignment_bytes
from moldau.groups.events import ConsumerHeartbeat, OffsetToCommit, ResetOffsets
from moldau.groups.group import Group
from moldau.groups.records import decode
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset

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


def any_subscription(rng, world):
    owned = {name: frozenset(rng.sample(range(-1, 6), 2)) for name in rng.sample("tu", 1)}
    return rng.choice([subscription(("t", "u"), owned), subscription(("t",)), b"?", b""])


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
    match rng.randrange(17):
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
            rejoins = rng.choice([member_id, "", *world.consumers()[2]])
            world.send_join(
                rejoins,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=rng.choice([-1, 0, 5_000]),
                instance_id=rng.choice([None, None, "i", "j"]),
                member_id_required=rng.random() < 0.3,
                protocols=(("range", any_subscription(rng, world)),),
            )
        case 6:
            world.leave(member_id)
        case 7:
            asks = rng.choice([member_id, *world.consumers()[2]])
            generation = rng.randrange(3)
            if asks in world.consumers()[2] and rng.random() < 0.7:
                generation = world.consumers()[2][asks][0]
            world.heartbeat(asks, generation)
            world.send_sync(asks, generation, {asks: assignment_bytes({"t": range(4)})})
        case 8:
            world.hold_writes = True
        case 9 | 10:
            world.release()
        case 11 if world.held:
            world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
        case 12:
            offset = OffsetToCommit(partition=world.tp("t"), offset=Offset(rng.randrange(9)))
            removes = {"removes_members": rng.random() < 0.5}
            world.send(ResetOffsets, group_id="g", offsets=(offset,), **removes)
        case _:
            any_beat(rng, world, member_id)


def replayed(log, rng):
    """As a loading does it: the last record of each key, in any order."""
    latest = dict(log)
    group = Group("g")
    pairs = [pair for pair in latest.items() if pair[1] is not None]
    rng.shuffle(pairs)
    for key, value in pairs:
        record = decode(key, value)
        assert record is not None
        group.apply(record)
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
def test_arbitrary_requests_are_answered_and_the_log_gives_the_same_state(make_world, seed):
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
