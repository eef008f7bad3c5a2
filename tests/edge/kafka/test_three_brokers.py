"""A real cluster of three, asked by our own connection and by unmodified clients."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from compat_clients import CLIENTS, PARTITIONS, why_missing
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

pytestmark = pytest.mark.system

NUMBERS = (1, 2, 3)
NOT_YET = (OSError, LookupError)
"""A broker that does not answer yet, or a topic that is not there yet."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # kcat creates topics by writing to them.
    with Cluster(brokers=3, settings={"TOPIC__PARTITIONS": str(PARTITIONS)}) as started:
        yield started


@pytest.fixture
def connections(cluster: Cluster) -> Iterator[dict[int, KafkaConnection]]:
    opened = {
        number: KafkaConnection("127.0.0.1", int(cluster.brokers[number].address.split(":")[1]))
        for number in NUMBERS
    }
    yield opened
    for connection in opened.values():
        connection.close()


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 3})


@pytest.fixture
def topic(cluster: Cluster, admin: AdminClient, request: pytest.FixtureRequest) -> Iterator[str]:
    """With three partitions on all brokers, all in sync, each led by its preferred leader."""
    name = f"{request.node.name[:60].replace('[', '.').replace(']', '')}"
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(wait_seconds_max())
    cluster.wait_ready()
    yield name
    admin.delete_topics([name])[name].result(wait_seconds_max())


def described(connection: KafkaConnection, topic: str) -> MetadataResponseTopic:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    return connection.request(request, MetadataResponse).topics[0]


def leaders(connection: KafkaConnection, topic: str) -> list[int]:
    return [partition.leader_id for partition in described(connection, topic).partitions]


def produce_request(topic: str, topic_id: bytes) -> ProduceRequest:
    record = Record(Offset(0), TimestampMs(1_000), b"key", b"value", [])
    partition = ProducePartition(index=0, records=build_batch([record]))
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topics=[ProduceTopic(name=topic, topic_id=topic_id, partitions=[partition])],
    )


def test_every_broker_returns_the_same(connections: dict[int, KafkaConnection], topic: str) -> None:
    def agree() -> bool:
        told = [described(connection, topic).partitions for connection in connections.values()]
        return told[0] == told[1] == told[2] and all(
            sorted(partition.isr_nodes) == list(NUMBERS) for partition in told[0]
        )

    wait_until(agree, "the brokers agree", ignoring=NOT_YET)
    partitions = described(connections[1], topic).partitions
    # Spread over the brokers, the preferred leader first.
    assert sorted(partition.leader_id for partition in partitions) == list(NUMBERS)
    assert [each.replica_nodes[0] for each in partitions] == [each.leader_id for each in partitions]
    assert all(each.offline_replicas == [] for each in partitions)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_a_produce_to_the_wrong_broker_names_the_right_one(
    cluster: Cluster, connections: dict[int, KafkaConnection], topic: str, version: int
) -> None:
    found = described(connections[1], topic)
    leader = found.partitions[0].leader_id
    request = produce_request(topic, found.topic_id)
    for number in NUMBERS:
        response = connections[number].request(request, ProduceResponse, version)
        (partition,) = response.topics[0].partitions
        if number == leader:
            assert partition.error_code == ErrorCode.NONE
            continue
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert partition.current_leader is not None
            assert partition.current_leader.leader_id == leader
            (node,) = response.node_endpoints
            assert f"{node.host}:{node.port}" == cluster.brokers[leader].address


def test_a_fetch_from_the_wrong_broker_names_the_right_one(
    cluster: Cluster, connections: dict[int, KafkaConnection], topic: str
) -> None:
    found = described(connections[1], topic)
    leader = found.partitions[0].leader_id
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, topic_id=found.topic_id, partitions=[partition])],
    )
    for number in NUMBERS:
        response = connections[number].request(request, FetchResponse)
        (answer,) = response.topics[0].partitions
        if number == leader:
            assert answer.error_code == ErrorCode.NONE
            continue
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader is not None
        assert answer.current_leader.leader_id == leader
        assert [(node.node_id, node.port) for node in response.node_endpoints] == [
            (leader, int(cluster.brokers[leader].address.split(":")[1]))
        ]


def test_offsets_and_deletions_are_the_leaders_business(
    connections: dict[int, KafkaConnection], topic: str
) -> None:
    found = described(connections[1], topic)
    leader = found.partitions[0].leader_id
    connections[leader].request(produce_request(topic, found.topic_id), ProduceResponse)
    asked = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ]
    )
    deletion = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)]
            )
        ],
        timeout_ms=30_000,
    )
    for number in sorted(NUMBERS, key=lambda number: number == leader):
        offset = connections[number].request(asked, ListOffsetsResponse).topics[0].partitions[0]
        deleted = (
            connections[number].request(deletion, DeleteRecordsResponse).topics[0].partitions[0]
        )
        if number == leader:
            assert (offset.error_code, offset.offset) == (0, 1)
            assert (deleted.error_code, deleted.low_watermark) == (0, 1)
        else:
            assert offset.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert deleted.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_all_brokers_name_the_same_coordinator_and_the_others_refuse_the_group(
    connections: dict[int, KafkaConnection],
) -> None:
    groups = [f"group-{number}" for number in range(20)]

    def coordinators(connection: KafkaConnection) -> list[int]:
        request = FindCoordinatorRequest(coordinator_keys=groups)
        response = connection.request(request, FindCoordinatorResponse)
        return [found.node_id for found in response.coordinators]

    def agree() -> bool:
        told = [coordinators(connection) for connection in connections.values()]
        return told[0] == told[1] == told[2] and -1 not in told[0]

    wait_until(agree, "the brokers agree", ignoring=NOT_YET)
    found = dict(zip(groups, coordinators(connections[1]), strict=True))
    for number, connection in connections.items():
        response = connection.request(DescribeGroupsRequest(groups=groups), DescribeGroupsResponse)
        for group in response.groups:
            is_mine = found[group.group_id] == number
            refused = group.error_code == ErrorCode.NOT_COORDINATOR
            assert refused is not is_mine


def test_kafka_python_brings_leadership_back(
    cluster: Cluster, connections: dict[int, KafkaConnection], topic: str
) -> None:
    before = leaders(connections[1], topic)
    victim = cluster.brokers[before[0]]
    asking = next(connections[number] for number in NUMBERS if number != victim.number)
    victim.restart()
    cluster.wait_ready()
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)

    def elect() -> set[int]:
        response = client.elect_leaders(0, {topic: [0, 1, 2]}, raise_errors=False)
        (found,) = response.replica_election_results
        return {each.error_code for each in found.partition_result}

    try:
        # A broker that is just back may have to catch up first.
        wait_until(
            lambda: elect() == {ErrorCode.ELECTION_NOT_NEEDED},
            "the preferred leaders are elected",
            ignoring=NOT_YET,
        )
    finally:
        client.close()
    assert leaders(asking, topic) == before


def test_kafka_python_moves_a_partition_and_watches_it(
    cluster: Cluster, connections: dict[int, KafkaConnection], admin: AdminClient
) -> None:
    name = "moved"
    admin.create_topics([NewTopic(name, 1, 2)])[name].result(wait_seconds_max())
    cluster.wait_ready()
    asking = connections[1]
    (partition,) = described(asking, name).partitions
    stays = partition.replica_nodes[0]
    comes = next(number for number in NUMBERS if number not in partition.replica_nodes)
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        wish = {TopicPartition(name, 0): [comes, stays], TopicPartition(name, 7): [1]}
        answers = client.alter_partition_reassignments(wish)
        assert answers[TopicPartition(name, 0)] is None
        refused = answers[TopicPartition(name, 7)]
        assert getattr(refused, "errno", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wait_until(
            lambda: not client.list_partition_reassignments(),
            "the move has ended",
            ignoring=NOT_YET,
        )
    finally:
        client.close()
    wait_until(
        lambda: sorted(described(asking, name).partitions[0].isr_nodes) == sorted([comes, stays]),
        "the new replica is in sync",
        ignoring=NOT_YET,
    )
    assert described(asking, name).partitions[0].replica_nodes == [comes, stays]


def test_more_replicas_than_brokers_are_a_clear_error(admin: AdminClient) -> None:
    with pytest.raises(Exception, match="replication factor is 4, but the cluster has 3 brokers"):
        admin.create_topics([NewTopic("too-many", 1, 4)])["too-many"].result(wait_seconds_max())


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_write_and_read_across_brokers(
    cluster: Cluster, name: str, unique: Callable[[], str]
) -> None:
    reason = why_missing(name)
    if reason is not None:
        pytest.skip(reason)
    client = CLIENTS[name]()
    topic = unique()
    sent = client.sample(600)
    client.create_topic(cluster.bootstrap, topic)
    client.produce(cluster.bootstrap, topic, sent, "none")
    group = unique()
    received = client.consume(cluster.bootstrap, [topic], group, 200)
    received += client.consume(cluster.bootstrap, [topic], group, len(sent) - 200)
    for partition in range(PARTITIONS):
        expected = [each.value for each in sent if each.partition == partition]
        got = [each.message.value for each in received if each.message.partition == partition]
        assert got == expected


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test has."""
    made = 0

    def name() -> str:
        nonlocal made
        made += 1
        return f"{request.node.name.replace('[', '-').replace(']', '')[:80]}-{made}"

    return name
