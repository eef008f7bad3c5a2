"""What clients are told about brokers and partitions, by all APIs that tell it."""

import asyncio

import pytest
from handler_calls import Asked, FakeCluster, ask, brokers, facade, image, service, topic

from moldau.edge.kafka.handlers import describe_cluster, describe_topic_partitions, metadata
from moldau.edge.kafka.partition_leaders import current_leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


@pytest.fixture
def cluster() -> FakeCluster:
    """Broker 2 leads partition 0, nobody leads partition 1, and broker 3 is away."""
    seen = image(brokers(1, 2, 3), topic("t", (2, 1, 3), (3, 1, 2)))
    cluster = FakeCluster(seen)
    cluster.lead("t", 0, 2, 5)
    # A move has begun since broker 2 said who is in sync.
    cluster.synced["t", 0] = (2, 1, 4)
    cluster.alive = frozenset(number for number in seen.brokers if number != 3)
    return cluster


def ask_metadata(cluster: FakeCluster, version: int = 13) -> MetadataResponse:
    request = MetadataRequest(topics=[] if version == 0 else None)
    return ask(metadata.API, facade(cluster), request, MetadataResponse, version)


@pytest.mark.parametrize("version", range(14))
def test_metadata_returns_leader_replicas_and_who_is_in_sync(
    cluster: FakeCluster, version: int
) -> None:
    led, leaderless = ask_metadata(cluster, version).topics[0].partitions
    assert (led.error_code, led.leader_id) == (ErrorCode.NONE, 2)
    assert led.leader_epoch == (5 if version >= 7 else -1)
    # The preferred leader first: tools take it from there.
    assert (led.replica_nodes, led.isr_nodes) == ([2, 1, 3], [2, 1])
    assert led.offline_replicas == ([3] if version >= 5 else [])
    assert (leaderless.error_code, leaderless.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (leaderless.replica_nodes, leaderless.isr_nodes) == ([3, 1, 2], [])


@pytest.mark.parametrize(("is_cut_off", "is_led", "told"), [
    (True, False, "drained"), (False, False, None), (True, True, None),
])  # fmt: skip
async def test_a_broker_that_is_cut_off_sends_clients_away_who_ask_in_vain(
    cluster: FakeCluster, is_cut_off: bool, is_led: bool, told: str | None
) -> None:
    cluster.is_cut_off = is_cut_off
    if is_led:
        cluster.lead("t", 1, 3, 1)
    asked = Asked(metadata.API, facade(cluster), MetadataRequest(topics=None), 13)
    # The answer first.
    assert asked.connection.closed_because is None
    await asyncio.sleep(0)
    assert asked.connection.closed_because == told


def test_describe_topic_partitions_says_the_same(cluster: FakeCluster) -> None:
    response = ask(
        describe_topic_partitions.API,
        facade(cluster),
        DescribeTopicPartitionsRequest(topics=[]),
        DescribeTopicPartitionsResponse,
    )
    asked = ask_metadata(cluster).topics[0].partitions
    for partition, other in zip(response.topics[0].partitions, asked, strict=True):
        names = (
            "error_code",
            "partition_index",
            "leader_id",
            "leader_epoch",
            "replica_nodes",
            "isr_nodes",
            "offline_replicas",
        )
        assert [getattr(partition, name) for name in names] == [
            getattr(other, name) for name in names
        ]


def test_metadata_lists_also_brokers_that_cannot_be_reached_from_here(cluster: FakeCluster) -> None:
    # A broker that is cut off would otherwise take the whole cluster from its clients.
    cluster.alive = frozenset()
    listed = ask_metadata(cluster).brokers
    assert [(broker.node_id, broker.host, broker.port, broker.rack) for broker in listed] == [
        (number, f"host-{number}", 9000 + number, f"rack-{number}") for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(("controller", "told"), [(3, 3), (-1, 1), (9, 1)])
def test_there_is_always_a_controller_to_send_commands_to(
    cluster: FakeCluster, controller: int, told: int
) -> None:
    cluster.controller_id = controller
    assert ask_metadata(cluster).controller_id == told


def test_a_leader_that_was_removed_from_the_cluster_is_none(cluster: FakeCluster) -> None:
    cluster.lead("t", 1, 9, 4)
    partition = ask_metadata(cluster).topics[0].partitions[1]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def describe(cluster: FakeCluster, version: int, *, fenced: bool = False) -> list[tuple[int, bool]]:
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=fenced
    )
    response = ask(describe_cluster.API, facade(cluster), request, DescribeClusterResponse, version)
    assert response.controller_id == 1
    return [(broker.broker_id, broker.is_fenced) for broker in response.brokers]


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_leaves_out_who_is_away(cluster: FakeCluster, version: int) -> None:
    assert describe(cluster, version) == [(1, False), (2, False)]


def test_describe_cluster_lists_who_is_away_if_asked(cluster: FakeCluster) -> None:
    assert describe(cluster, 2, fenced=True) == [(1, False), (2, False), (3, True)]


def test_the_current_leader_is_returned_with_its_address(cluster: FakeCluster) -> None:
    leader = current_leader(facade(cluster), "t", 0)
    assert leader is not None
    assert (leader.id, leader.epoch, leader.node.host, leader.node.port) == (2, 5, "host-2", 9002)


@pytest.mark.parametrize(("name", "index"), [("t", 1), ("t", 2), ("t", -1), ("u", 0), (None, 0)])
def test_no_current_leader_is_made_up(cluster: FakeCluster, name: str | None, index: int) -> None:
    assert current_leader(facade(cluster), name, index) is None


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_topic_that_may_still_be_created_is_to_be_asked_for_again(
    cluster: FakeCluster, refusal: ErrorCode, told: ErrorCode
) -> None:
    async def ensure(name: str) -> None:
        raise RefusedError(refusal, "why")

    response = ask(
        metadata.API,
        facade(cluster, auto_create_topics=True, topics=service(ensure=ensure)),
        MetadataRequest(topics=[MetadataRequestTopic(name="new"), MetadataRequestTopic(name="t")]),
        MetadataResponse,
    )
    assert [(each.name, each.error_code) for each in response.topics] == [("new", told), ("t", 0)]
