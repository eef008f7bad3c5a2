"""Fetch: a partition is answered once, and by a broker that does not lead with who does."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, service, topic

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.edge.kafka.handlers import fetch
from moldau.model.errors import ErrorCode
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

TOPIC = topic("t", (1, 2), (2, 1), (1, 2), (2, 1))
ERRORS = {
    0: ErrorCode.NONE,
    1: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    2: ErrorCode.FENCED_LEADER_EPOCH,
    3: ErrorCode.OFFSET_OUT_OF_RANGE,
}
VERSIONS = range(4, 19)


def answer(version: int, leaders: dict[int, tuple[int, int]]) -> FetchResponse:
    cluster = FakeCluster(image(brokers(1, 2), TOPIC))
    for index, (leader, epoch) in leaders.items():
        cluster.lead("t", index, leader, epoch)

    def read(
        wanted: Sequence[Any], *, on_ready: Callable[[list[PartitionFetchResult]], None], **_: int
    ) -> None:
        on_ready([PartitionFetchResult(ERRORS[each.partition], 10, 0, b"", 0) for each in wanted])

    partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
        for index in ERRORS
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic="t", topic_id=TOPIC.topic_id, partitions=partitions)],
    )
    broker = facade(cluster, fetch=service(fetch=read))
    return ask(fetch.API, broker, request, FetchResponse, version)


def leader_of(partition: FetchResponsePartition) -> tuple[int, int] | None:
    leader = partition.current_leader
    return None if leader is None else (leader.leader_id, leader.leader_epoch)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_partitions_led_by_another_broker_or_later_come_with_their_leader(
    version: int,
) -> None:
    response = answer(version, {0: (1, 3), 1: (2, 4), 2: (1, 5), 3: (2, 4)})
    partitions = response.topics[0].partitions
    assert [each.error_code for each in partitions] == list(ERRORS.values())
    told = [leader_of(each) for each in partitions]
    nodes = [(node.node_id, node.host, node.port) for node in response.node_endpoints]
    # Kafka's brokers name the leader from version 16 on, where they can also say where it is.
    if version >= 16:
        assert told == [None, (2, 4), (1, 5), None]
        assert nodes == [(2, "host-2", 9002), (1, "host-1", 9001)]
    else:
        assert told == [None] * 4
        assert nodes == []


def test_no_leader_is_made_up() -> None:
    response = answer(18, {})
    assert [leader_of(each) for each in response.topics[0].partitions] == [None] * 4
    assert response.node_endpoints == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_repeated_is_read_and_answered_once(version: int) -> None:
    """As the last of them says: Kafka keeps them by name, too."""
    read: list[PartitionFetch] = []

    def note(
        wanted: Sequence[PartitionFetch],
        *,
        on_ready: Callable[[list[PartitionFetchResult]], None],
        **_: int,
    ) -> None:
        read.extend(wanted)
        on_ready([PartitionFetchResult(ErrorCode.NONE, 10, 0, b"", 0) for _ in wanted])

    others = topic("other", (1,))
    cluster = FakeCluster(image(brokers(1), TOPIC, others))
    topics = [
        FetchTopic(
            topic=each.name,
            topic_id=each.topic_id,
            partitions=[
                FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1)
                for index, offset in wanted
            ],
        )
        for each, wanted in (
            (TOPIC, [(2, 20), (0, 1), (0, 2)]),
            (others, [(0, 3)]),
            (TOPIC, [(0, 4), (1, 5)]),
        )
    ]
    response = ask(
        fetch.API,
        facade(cluster, fetch=service(fetch=note)),
        FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics),
        FetchResponse,
        version,
    )
    assert [(each.topic, each.partition, each.offset) for each in read] == [
        ("t", 2, 20),
        ("t", 0, 4),
        ("t", 1, 5),
        ("other", 0, 3),
    ]
    answered = [[each.partition_index for each in found.partitions] for found in response.topics]
    assert answered == [[2, 0, 1], [0]]
