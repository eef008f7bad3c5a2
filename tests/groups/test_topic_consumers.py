"""What a group has to do with a topic: by its offsets, or by what its members subscribe to."""

import pytest

from moldau.groups.topic_consumers import TopicConsumers


def of(world, topic: str, partitions: int, *, with_offsets: bool = True) -> TopicConsumers | None:
    found: TopicConsumers | None = world.coordinator.consumers_of(
        "g", topic, partitions, with_offsets=with_offsets
    )
    return found


@pytest.mark.parametrize("partitions", [3, 10], ids=["few partitions", "few offsets"])
def test_committed_offsets_are_found_in_order(world, partitions):
    others = {world.tp("other", index): 1 for index in range(3)}
    world.commit({world.tp("t", 2): 9, world.tp("t", 0): 5, **others})
    assert of(world, "t", partitions) == TopicConsumers("Empty", 0, ((0, 5), (2, 9)))
    assert of(world, "t", partitions, with_offsets=False) == TopicConsumers("Empty", 0)
    # Of another topic of that name, before this one.
    assert of(world, "t", 1) == TopicConsumers("Empty", 0, ((0, 5),))
    assert of(world, "nothing", partitions) is None


def test_a_classic_group_consumes_what_its_members_subscribe_to(world):
    world.stable(members=2, topics=("a", "b"))
    assert of(world, "b", 4) == TopicConsumers("Stable", 2)
    assert of(world, "t", 4) is None


def test_members_with_another_protocol_subscribe_to_nothing(world):
    world.stable(protocol_type="connect", protocols=(("v1", b"x"),))
    assert of(world, "t", 4) is None


def test_a_group_of_the_consumer_protocol_consumes_what_its_members_subscribe_to(world):
    world.topics.create("t", 1)
    world.beat("m", 0, topics=("t",), makes_member_id=True)
    assert of(world, "t", 1) == TopicConsumers("Stable", 1)
    assert of(world, "other", 1) is None


def test_a_group_that_is_unknown_or_on_another_broker_has_nothing(world):
    assert of(world, "t", 1) is None
    world.commit({world.tp("t"): 1})
    assert world.coordinator.group_ids() == ["g"]
    world.coordinator.close(world.now)
    assert of(world, "t", 1) is None
