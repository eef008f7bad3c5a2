"""Brokers that are lost with their directories are removed, and their replicas replaced."""

import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateCluster,
    CreateTopic,
    DrainBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveLostBrokers,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def register(number: int) -> RegisterBroker:
    return RegisterBroker(id=BrokerId(number), host="h", port=9092, incarnation=f"dir-{number}")


def lose(*brokers: int) -> RemoveLostBrokers:
    return RemoveLostBrokers(broker_ids=[BrokerId(broker) for broker in brokers])


def topic(name: str, *assignments: list[int], internal: bool = False) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=TopicId(name.encode().ljust(16, b".")),
        assignments=dict(enumerate(assignments)),
        internal=internal,
    )


def five() -> Image:
    return after(
        EMPTY_IMAGE,
        CreateCluster(cluster_id="c"),
        *(register(number) for number in range(1, 6)),
    )


def desired(image: Image, name: str) -> list[tuple[int, ...]]:
    return [tuple(partition.desired) for partition in image.topics[name].partitions]


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    return caught.value


def test_their_replicas_get_other_brokers_and_what_is_left_stays() -> None:
    image = after(five(), topic("t", [4, 1, 5], [1, 2, 3], [5, 4, 2]), lose(4, 5))
    assert sorted(image.brokers) == [1, 2, 3]
    first, second, third = desired(image, "t")
    assert sorted(first) == [1, 2, 3]
    assert second == (1, 2, 3)
    assert sorted(third) == [1, 2, 3]
    part = image.topics["t"].partitions[0]
    # Their group's log still names them: they stay in `replicas` until they have left the group.
    assert set(part.replicas) == {1, 2, 3, 4, 5}
    # A survivor that restarts before it is forced must not think that it was alone from the start.
    assert part.origin == (4, 1, 5)


def test_with_too_few_brokers_there_are_fewer_replicas() -> None:
    image = after(five(), topic("t", [1, 4, 5]), lose(3, 4, 5))
    assert sorted(desired(image, "t")[0]) == [1, 2]


def test_a_partition_without_any_replica_left_stays_as_it_is() -> None:
    image = after(five(), topic("t", [4, 5], [4, 1]), lose(4, 5))
    assert desired(image, "t")[0] == (4, 5)
    assert 1 in desired(image, "t")[1]


def test_an_internal_partition_without_any_replica_left_gets_other_brokers() -> None:
    image = after(five(), topic("__queue_state", [4, 5], internal=True), lose(4, 5))
    part = image.topics["__queue_state"].partitions[0]
    assert len(part.target) == 2
    assert set(part.target) < {1, 2, 3}
    # The first voters: those that have it now must not think that they were alone from the start.
    assert part.origin == (4, 5)


def test_a_partition_that_is_moving_to_them_gets_brokers_that_are_left() -> None:
    move = ReassignPartition(topic="t", partition=PartitionIndex(0), replicas=[1, 4, 5])
    image = after(five(), topic("t", [1, 2, 3]), move, lose(4, 5))
    part = image.topics["t"].partitions[0]
    assert sorted(part.target) == [1, 2, 3]
    assert part.origin == (1, 2, 3)


def test_they_never_come_back() -> None:
    image = after(five(), lose(4, 5))
    assert refused(image, register(4)).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    # Without its number it is known by its directory.
    unnamed = RegisterBroker(id=None, host="h", port=9092, incarnation="dir-5")
    assert refused(image, unnamed).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert {4, 5} == image.removed_brokers.keys()


def test_twice_is_once() -> None:
    image = after(five(), topic("t", [1, 4, 5]), lose(4, 5))
    assert decide(lose(4, 5), image) == []
    # Another one is lost later.
    later = after(image, lose(3, 4, 5))
    assert sorted(later.brokers) == [1, 2]


def test_a_move_away_from_lost_brokers_cannot_be_cancelled() -> None:
    image = after(five(), topic("t", [1, 4, 5]), lose(4, 5))
    cancel = ReassignPartition(topic="t", partition=PartitionIndex(0), replicas=None)
    error = refused(image, cancel)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "broker 4, which was removed" in error.message


def test_an_active_broker_must_be_left() -> None:
    image = five()
    assert refused(image, lose()).code is ErrorCode.INVALID_REQUEST
    assert refused(image, lose(9)).code is ErrorCode.BROKER_ID_NOT_REGISTERED
    drained = after(image, DrainBroker(broker_id=BrokerId(5)))
    assert refused(drained, lose(1, 2, 3, 4)).code is ErrorCode.INVALID_REQUEST
