"""Topics are created, seen, grown, emptied and deleted at every version that is served."""

import itertools
from collections.abc import Callable

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from moldau.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
)
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

pytestmark = pytest.mark.system

Produce = Callable[[str, int], None]
NO_ID = bytes(16)
_numbers = itertools.count(1)


def fresh_name() -> str:
    return f"edge-topic-{next(_numbers)}"


def topic(name: str, partitions: int = 1, factor: int = 1) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)


def create(
    connection: KafkaConnection,
    *topics: CreatableTopic,
    version: int = 7,
    validate_only: bool = False,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return connection.request(request, CreateTopicsResponse, version).topics


def partition_count(connection: KafkaConnection, name: str) -> int:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return len(connection.request(request, MetadataResponse).topics[0].partitions)


# ---- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_and_described(connection: KafkaConnection, version: int) -> None:
    name = fresh_name()
    wanted = topic(name, partitions=3)
    wanted.configs = [CreatableTopicConfig(name="retention.ms", value="1234")]
    (result,) = create(connection, wanted, version=version)
    assert (result.name, result.error_code, result.error_message) == (name, 0, None)
    assert partition_count(connection, name) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.configs is not None
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1234", 1)
        assert configs["cleanup.policy"].value == "delete"
    if version >= 7:
        assert result.topic_id != NO_ID


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_that_exists_is_refused_with_a_message(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    (result,) = create(connection, topic(moldau_topic), version=version)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert result.error_message
    # Null makes the Java client fail with a NullPointerException.
    assert result.configs == []


def test_validate_only_returns_what_would_be_and_creates_nothing(
    connection: KafkaConnection,
) -> None:
    name = fresh_name()
    (result,) = create(connection, topic(name, partitions=4), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 4, NO_ID)
    assert result.configs
    assert partition_count(connection, name) == 0


def test_counts_of_minus_one_are_the_defaults(connection: KafkaConnection) -> None:
    (result,) = create(connection, topic(fresh_name(), partitions=-1, factor=-1))
    assert (result.error_code, result.replication_factor) == (0, 1)
    assert result.num_partitions >= 1


@pytest.mark.safety
def test_a_name_given_twice_creates_nothing(connection: KafkaConnection) -> None:
    name, other = fresh_name(), fresh_name()
    results = create(connection, topic(name), topic(other), topic(name, partitions=2))
    codes = {result.name: result.error_code for result in results}
    assert codes == {name: ErrorCode.INVALID_REQUEST, other: 0}
    assert len(results) == 2
    assert partition_count(connection, name) == 0


def test_an_assignment_gives_the_partitions(connection: KafkaConnection) -> None:
    wanted = topic(fresh_name(), partitions=-1, factor=-1)
    wanted.assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(2)
    ]
    (result,) = create(connection, wanted)
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize(
    ("indexes", "brokers"), [((0, 0), [1]), ((1,), [1]), ((0,), [77]), ((0,), [])]
)
def test_a_wrong_assignment_is_refused(
    connection: KafkaConnection, indexes: tuple[int, ...], brokers: list[int]
) -> None:
    wanted = topic(fresh_name(), partitions=-1, factor=-1)
    wanted.assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers) for index in indexes
    ]
    (result,) = create(connection, wanted)
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("no spaces"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic("x", factor=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    connection: KafkaConnection, wanted: CreatableTopic, code: ErrorCode
) -> None:
    (result,) = create(connection, wanted)
    # The topic of the offsets may be there already, from another test.
    assert result.error_code in (code, ErrorCode.TOPIC_ALREADY_EXISTS)


def test_an_unknown_setting_is_refused(connection: KafkaConnection) -> None:
    wanted = topic(fresh_name())
    wanted.configs = [CreatableTopicConfig(name="no.such.setting", value="1")]
    (result,) = create(connection, wanted)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "no.such.setting" in (result.error_message or "")


# ---- DeleteTopics


@pytest.mark.parametrize("version", range(1, 6))
def test_a_topic_is_deleted_by_name(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    request = DeleteTopicsRequest(topic_names=[moldau_topic, "not-there"], timeout_ms=30_000)
    deleted, unknown = connection.request(request, DeleteTopicsResponse, version).responses
    assert (deleted.name, deleted.error_code) == (moldau_topic, 0)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (unknown.error_message is not None) == (version >= 5)
    assert partition_count(connection, moldau_topic) == 0


def test_a_topic_is_deleted_by_id_and_comes_back_with_another(
    connection: KafkaConnection, moldau_topic: str, topic_id_of: Callable[[str], bytes]
) -> None:
    topic_id = topic_id_of(moldau_topic)
    states = [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=b"x" * 16)]
    request = DeleteTopicsRequest(topics=states, timeout_ms=30_000)
    deleted, unknown = connection.request(request, DeleteTopicsResponse, 6).responses
    assert (deleted.name, deleted.topic_id, deleted.error_code) == (moldau_topic, topic_id, 0)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    (created,) = create(connection, topic(moldau_topic))
    assert created.topic_id not in (topic_id, NO_ID)


def test_wrong_ways_to_name_a_topic_to_delete(
    connection: KafkaConnection, moldau_topic: str, topic_id_of: Callable[[str], bytes]
) -> None:
    states = [
        DeleteTopicState(name=None, topic_id=NO_ID),
        DeleteTopicState(name=moldau_topic, topic_id=topic_id_of(moldau_topic)),
        DeleteTopicState(name="twice", topic_id=NO_ID),
        DeleteTopicState(name="twice", topic_id=NO_ID),
    ]
    request = DeleteTopicsRequest(topics=states, timeout_ms=30_000)
    responses = connection.request(request, DeleteTopicsResponse, 6).responses
    assert [each.error_code for each in responses] == [ErrorCode.INVALID_REQUEST] * 3
    assert partition_count(connection, moldau_topic) == 1


# ---- CreatePartitions


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows(connection: KafkaConnection, moldau_topic: str, version: int) -> None:
    def grow(count: int, *, validate_only: bool = False) -> int:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=moldau_topic, count=count, assignments=None)],
            timeout_ms=30_000,
            validate_only=validate_only,
        )
        (result,) = connection.request(request, CreatePartitionsResponse, version).results
        assert (result.error_message is not None) == (result.error_code != 0)
        return result.error_code

    assert grow(3, validate_only=True) == 0
    assert partition_count(connection, moldau_topic) == 1
    assert grow(3) == 0
    assert partition_count(connection, moldau_topic) == 3
    assert grow(3) == ErrorCode.INVALID_PARTITIONS
    assert grow(2) == ErrorCode.INVALID_PARTITIONS


def test_partitions_are_added_where_the_assignment_says(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    def entry(count: int, *replicas: list[int]) -> CreatePartitionsTopic:
        return CreatePartitionsTopic(
            name=moldau_topic,
            count=count,
            assignments=[CreatePartitionsAssignment(broker_ids=each) for each in replicas],
        )

    def send(*entries: CreatePartitionsTopic) -> list[int]:
        request = CreatePartitionsRequest(
            topics=list(entries), timeout_ms=30_000, validate_only=False
        )
        response = connection.request(request, CreatePartitionsResponse)
        return [result.error_code for result in response.results]

    assert send(entry(2, [1])) == [0]
    assert send(entry(3, [9])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert send(entry(4, [1])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert send(entry(3, [1]), entry(4, [1], [1])) == [ErrorCode.INVALID_REQUEST]
    assert partition_count(connection, moldau_topic) == 2


# ---- DeleteRecords


@pytest.mark.parametrize("version", range(3))
def test_the_start_of_a_partition_moves(
    connection: KafkaConnection, moldau_topic: str, produce: Produce, version: int
) -> None:
    produce(moldau_topic, 3)

    def delete(offset: int, partition: int = 0) -> tuple[int, int]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=moldau_topic,
                    partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)],
                )
            ],
            timeout_ms=30_000,
        )
        (topics,) = connection.request(request, DeleteRecordsResponse, version).topics
        return topics.partitions[0].error_code, topics.partitions[0].low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(-1) == (0, 3)
    assert delete(4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(0, partition=8) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


# ---- OffsetForLeaderEpoch


@pytest.mark.parametrize("version", range(5))
def test_the_end_of_an_epoch_is_found(
    connection: KafkaConnection, moldau_topic: str, produce: Produce, version: int
) -> None:
    produce(moldau_topic, 2)
    metadata = connection.request(
        MetadataRequest(topics=[MetadataRequestTopic(name=moldau_topic)]), MetadataResponse
    )
    current = metadata.topics[0].partitions[0].leader_epoch

    def ask(epoch: int, partition: int = 0, current_epoch: int = -1) -> tuple[int, int, int]:
        request = OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic=moldau_topic,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=partition,
                            leader_epoch=epoch,
                            current_leader_epoch=current_epoch,
                        )
                    ],
                )
            ]
        )
        (topics,) = connection.request(request, OffsetForLeaderEpochResponse, version).topics
        (result,) = topics.partitions
        return result.error_code, result.leader_epoch, result.end_offset

    told = current if version >= 1 else -1
    assert ask(current) == (0, told, 2)
    assert ask(current + 1) == (0, -1, -1)
    assert ask(current, partition=5) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    if version >= 2:
        fenced = ask(current, current_epoch=current + 1)
        assert fenced == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


# ---- DescribeTopicPartitions


def page(
    connection: KafkaConnection,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return connection.request(request, DescribeTopicPartitionsResponse)


def test_topics_are_described_sorted_and_without_nulls(connection: KafkaConnection) -> None:
    first, second = sorted((fresh_name(), fresh_name()))
    create(connection, topic(first, partitions=2), topic(second))
    response = page(connection, second, "zz-not-there", first)
    assert [each.name for each in response.topics] == [first, second, "zz-not-there"]
    assert response.next_cursor is None
    assert response.topics[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for partition in response.topics[0].partitions:
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert partition.leader_epoch >= 0
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


def test_pages_join_to_the_whole(connection: KafkaConnection) -> None:
    names = sorted(fresh_name() for _ in range(3))
    create(connection, *(topic(name, partitions=3) for name in names))
    seen: list[tuple[str | None, int]] = []
    cursor = None
    for _ in range(20):
        response = page(connection, *names, limit=2, cursor=cursor)
        part = [
            (each.name, partition.partition_index)
            for each in response.topics
            for partition in each.partitions
        ]
        assert len(part) <= 2
        seen += part
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert seen == [(name, index) for name in names for index in range(3)]


def test_without_names_all_topics_are_described(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    assert moldau_topic in [each.name for each in page(connection).topics]


def test_a_cursor_beyond_the_end_gives_an_empty_topic(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    response = page(connection, moldau_topic, cursor=(moldau_topic, 50))
    assert [each.partitions for each in response.topics] == [[]]
    assert response.next_cursor is None


# ---- DescribeLogDirs


@pytest.mark.parametrize("version", range(1, 5))
def test_log_dirs_tell_sizes_and_room(
    connection: KafkaConnection, moldau_topic: str, produce: Produce, version: int
) -> None:
    produce(moldau_topic, 1)
    request = DescribeLogDirsRequest(
        topics=[DescribeLogDirsRequestTopic(topic=moldau_topic, partitions=[0, 7])]
    )
    (result,) = connection.request(request, DescribeLogDirsResponse, version).results
    assert (result.error_code, [each.name for each in result.topics]) == (0, [moldau_topic])
    (partition,) = result.topics[0].partitions
    assert (partition.partition_index, partition.offset_lag) == (0, 0)
    assert partition.partition_size > 0
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes


def test_log_dirs_without_a_list_tell_all(connection: KafkaConnection, moldau_topic: str) -> None:
    (result,) = connection.request(
        DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
    ).results
    assert moldau_topic in [each.name for each in result.topics]
