"""What only the right broker can say or do: its logs, its own settings, deleting records."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, service, topic

from moldau.api.local_replicas import LocalReplicas
from moldau.control.config_service import ResourceKind
from moldau.edge.kafka.handlers import (
    create_topics,
    delete_records,
    describe_configs,
    describe_log_dirs,
    init_producer_id,
    list_offsets,
)
from moldau.metadata.checks import check_replication_factor
from moldau.metadata.image import Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)


def three_brokers() -> FakeCluster:
    return FakeCluster(image(brokers(1, 2, 3), topic("t", (1, 2), (2, 3))))


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_only_where_the_partition_is_led(version: int) -> None:
    async def delete(name: str, index: int, before: int) -> int:
        if index == 1:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "broker 2 leads it")
        return before

    partitions = [DeleteRecordsPartition(partition_index=index, offset=5) for index in (0, 1)]
    response = ask(
        delete_records.API,
        facade(three_brokers(), topics=service(delete_records=delete)),
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1000
        ),
        DeleteRecordsResponse,
        version,
    )
    found = [(each.error_code, each.low_watermark) for each in response.topics[0].partitions]
    assert found == [(ErrorCode.NONE, 5), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


@pytest.mark.parametrize("version", range(1, 5))
def test_log_dirs_are_those_of_this_broker_with_the_lag_that_it_knows(version: int) -> None:
    def hosted(index: int, end: int, watermark: int) -> SimpleNamespace:
        replica = SimpleNamespace(
            partition=TopicPartition("t", PartitionIndex(index)),
            log=SimpleNamespace(size_bytes=100 + index, end_offset=end),
            high_watermark=watermark,
        )
        return SimpleNamespace(replica=replica)

    broker = facade(
        three_brokers(),
        replicas=LocalReplicas(cast(Any, [hosted(0, 12, 10), hosted(1, 7, 10)])),
        data_dir="/data",
        disk_total_bytes=lambda: 1000,
        disk_free_bytes=lambda: 400,
    )
    response = ask(
        describe_log_dirs.API,
        broker,
        DescribeLogDirsRequest(topics=None),
        DescribeLogDirsResponse,
        version,
    )
    (result,) = response.results
    found = [
        (each.partition_index, each.partition_size, each.offset_lag)
        for each in result.topics[0].partitions
    ]
    assert found == [(0, 100, 0), (1, 101, 3)]


@pytest.mark.parametrize(
    ("name", "code"),
    [("1", ErrorCode.NONE), ("", ErrorCode.NONE), ("2", ErrorCode.INVALID_REQUEST)],
)
def test_a_broker_does_not_pass_its_own_settings_off_as_those_of_another(
    name: str, code: ErrorCode
) -> None:
    broker = facade(three_brokers(), configs=service(describe=lambda kind, name: []))
    resource = DescribeConfigsResource(
        resource_type=ResourceKind.BROKER, resource_name=name, configuration_keys=None
    )
    response = ask(
        describe_configs.API,
        broker,
        DescribeConfigsRequest(resources=[resource]),
        DescribeConfigsResponse,
    )
    (result,) = response.results
    assert result.error_code == code
    assert (result.error_message is None) == (code is ErrorCode.NONE)


@pytest.mark.parametrize("version", range(2, 8))
def test_more_replicas_than_brokers_are_refused_with_both_numbers(version: int) -> None:
    cluster = three_brokers()

    async def create(name: str, *, replication_factor: int, **_: object) -> Topic:
        check_replication_factor(replication_factor, cluster.image)
        return topic(name)

    wanted = CreatableTopic(name="new", num_partitions=1, replication_factor=4)
    response = ask(
        create_topics.API,
        facade(cluster, topics=service(create=create)),
        CreateTopicsRequest(topics=[wanted], timeout_ms=1000),
        CreateTopicsResponse,
        version,
    )
    (result,) = response.topics
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert result.error_message is not None
    assert "4" in result.error_message
    assert "3 brokers" in result.error_message


@pytest.mark.parametrize("version", range(1, 11))
def test_a_leader_that_was_just_elected_asks_for_a_retry_with_a_code_that_clients_know(
    version: int,
) -> None:
    def find(*_: object, **__: object) -> None:
        raise RefusedError(ErrorCode.OFFSET_NOT_AVAILABLE, "just elected")

    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    response = ask(
        list_offsets.API,
        facade(three_brokers(), offsets=service(list_offset=find)),
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[partition])]),
        ListOffsetsResponse,
        version,
    )
    expected = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert response.topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize("version", range(6))
def test_a_producer_is_asked_to_retry_while_the_cluster_has_no_ids(version: int) -> None:
    async def take() -> int:
        raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "no metadata leader")

    response = ask(
        init_producer_id.API,
        facade(three_brokers(), producer_ids=service(take=take)),
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1),
        InitProducerIdResponse,
        version,
    )
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response.producer_id == -1
