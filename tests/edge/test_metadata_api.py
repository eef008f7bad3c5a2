"""Metadata: what clients learn about brokers and topics."""

from collections.abc import Callable

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.edge.kafka import authorized_operations as operations
from moldau.model.errors import ErrorCode
from moldau.security import acl
from moldau.testing.broker import Broker
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = pytest.mark.system

NO_ID = bytes(16)


def ask(
    connection: KafkaConnection,
    topics: list[MetadataRequestTopic] | None,
    version: int,
    *,
    create: bool = False,
) -> MetadataResponse:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create or version < 4)
    return connection.request(request, MetadataResponse, version)


@pytest.mark.parametrize("version", range(14))
def test_a_topic_is_found_by_name(
    connection: KafkaConnection, moldau_session_broker: Broker, moldau_topic: str, version: int
) -> None:
    response = ask(connection, [MetadataRequestTopic(name=moldau_topic)], version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.port) == (1, moldau_session_broker.port)
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, moldau_topic)
    (partition,) = topic.partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
    assert (topic.topic_id != NO_ID) == (version >= 10)
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_listed(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    # The empty list meant all of them once; null has taken that meaning.
    response = ask(connection, [] if version == 0 else None, version)
    assert moldau_topic in [topic.name for topic in response.topics]
    if version >= 1:
        assert ask(connection, [], version).topics == []


@pytest.mark.parametrize("version", range(4, 14))
def test_an_unknown_topic_is_not_created_by_default(
    connection: KafkaConnection, version: int
) -> None:
    (topic,) = ask(connection, [MetadataRequestTopic(name="not-there")], version).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.partitions == []


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_a_topic_is_created_on_demand(connection: KafkaConnection, version: int) -> None:
    name = f"on-demand-{version}"
    (topic,) = ask(connection, [MetadataRequestTopic(name=name)], version, create=True).topics
    assert (topic.error_code, topic.name) == (0, name)
    assert topic.partitions


@pytest.mark.parametrize("version", range(10, 14))
def test_a_topic_is_found_by_id(
    connection: KafkaConnection,
    moldau_topic: str,
    topic_id_of: Callable[[str], bytes],
    version: int,
) -> None:
    wanted = [
        MetadataRequestTopic(name=None, topic_id=topic_id_of(moldau_topic)),
        MetadataRequestTopic(name=None, topic_id=b"?" * 16),
    ]
    known, unknown = ask(connection, wanted, version).topics
    assert (known.error_code, known.name) == (0, moldau_topic)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    # Before version 12 the name cannot be null.
    assert unknown.name == (None if version >= 12 else "")


@pytest.mark.parametrize("version", range(8, 14))
def test_operations_are_returned_if_asked_for(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=moldau_topic)],
        include_cluster_authorized_operations=version <= 10,
        include_topic_authorized_operations=True,
    )
    response = connection.request(request, MetadataResponse, version)
    assert response.topics[0].topic_authorized_operations == operations.bits(acl.ON_TOPIC)
    if version <= 10:
        assert response.cluster_authorized_operations == operations.bits(acl.ON_CLUSTER)
