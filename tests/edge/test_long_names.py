"""Names as long as the protocol can carry are answered, not taken for a defect of the broker.

An error message that repeats such a name in full would not fit into its own field.
"""

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from moldau.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.wire.messages.delete_topics import DeleteTopicsRequest
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.wire.messages.heartbeat import HeartbeatRequest
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from moldau.wire.messages.list_groups import ListGroupsRequest
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.wire.schema import Request

pytestmark = pytest.mark.system

LONG = "n" * 32_767
TOPIC, BROKER = 2, 4


def _topic(name: str, setting: str | None = None) -> CreatableTopic:
    configs = [] if setting is None else [CreatableTopicConfig(name=setting, value=setting)]
    return CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)


def _growing(name: str) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(name=name, count=2, assignments=None)


def _resource(kind: int) -> IncrementalConfigsResource:
    change = IncrementalConfig(name=LONG, config_operation=9, value=LONG)
    return IncrementalConfigsResource(resource_type=kind, resource_name=LONG, configs=[change])


def _described(kind: int) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=LONG, configuration_keys=None)


def _replaced(kind: int) -> AlterConfigsResource:
    return AlterConfigsResource(resource_type=kind, resource_name=LONG, configs=[])


_PARTITION = OffsetCommitRequestPartition(
    partition_index=0, committed_offset=0, committed_metadata=LONG
)

REQUESTS: list[tuple[Request, int]] = [
    (CreateTopicsRequest(topics=[_topic(LONG)]), 2),
    (CreateTopicsRequest(topics=[_topic(LONG), _topic(LONG)]), 2),
    (CreateTopicsRequest(topics=[_topic("short", LONG)]), 2),
    (DeleteTopicsRequest(topic_names=[LONG, LONG], timeout_ms=1), 5),
    (CreatePartitionsRequest(topics=[_growing(LONG)], timeout_ms=1, validate_only=False), 0),
    (CreatePartitionsRequest(topics=[_growing(LONG)] * 2, timeout_ms=1, validate_only=False), 0),
    (DescribeConfigsRequest(resources=[_described(TOPIC), _described(BROKER)]), 1),
    (AlterConfigsRequest(resources=[_replaced(TOPIC), _replaced(BROKER)], validate_only=False), 0),
    (AlterConfigsRequest(resources=[_replaced(TOPIC)] * 2, validate_only=False), 0),
    (IncrementalAlterConfigsRequest(resources=[_resource(TOPIC)], validate_only=False), 0),
    (IncrementalAlterConfigsRequest(resources=[_resource(TOPIC)] * 2, validate_only=False), 0),
    (DescribeGroupsRequest(groups=[LONG]), 6),
    (DescribeGroupsRequest(groups=[LONG]), 0),
    (DeleteGroupsRequest(groups_names=[LONG]), 0),
    (ListGroupsRequest(states_filter=[LONG]), 4),
    (FindCoordinatorRequest(key=LONG, key_type=9), 2),
    (HeartbeatRequest(group_id=LONG, generation_id=1, member_id=LONG), 0),
    (MetadataRequest(topics=[MetadataRequestTopic(name=LONG)]), 4),
    (
        OffsetCommitRequest(
            group_id=LONG,
            member_id=LONG,
            topics=[OffsetCommitRequestTopic(name=LONG, partitions=[_PARTITION])],
        ),
        2,
    ),
]


@pytest.mark.parametrize(
    ("request_", "version"),
    REQUESTS,
    ids=[f"{type(each).__name__}-{number}" for number, (each, _) in enumerate(REQUESTS)],
)
def test_a_long_name_is_answered(
    connection: KafkaConnection, request_: Request, version: int
) -> None:
    connection.send(request_, version)
    assert not connection.closed
