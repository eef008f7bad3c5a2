"""The admin clients of other projects, unmodified, do their round against the broker."""

import itertools

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import TopicPartition as PythonPartition
from kafka import errors
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.system, pytest.mark.compat]

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    return f"admin-{next(_numbers)}"


@pytest.fixture
def librdkafka(moldau_session_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": moldau_session_broker.bootstrap})


@pytest.fixture
def kafka_python(moldau_session_broker: Broker):
    client = KafkaAdminClient(bootstrap_servers=moldau_session_broker.bootstrap)
    yield client
    client.close()


def done(futures):
    return {key: future.result(wait_seconds_max()) for key, future in futures.items()}


def refused_with(futures) -> str:
    with pytest.raises(KafkaException) as raised:
        done(futures)
    return str(raised.value.args[0].name())


def test_librdkafka_looks_after_topics(librdkafka: AdminClient, name: str) -> None:
    done(librdkafka.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "5000"})]))
    assert refused_with(librdkafka.create_topics([NewTopic(name, 2, 1)])) == "TOPIC_ALREADY_EXISTS"
    done(librdkafka.create_partitions([NewPartitions(name, 3)]))
    described = done(
        librdkafka.describe_topics(TopicCollection([name]), include_authorized_operations=True)
    )[name]
    assert len(described.partitions) == 3
    assert len(described.authorized_operations) == 8
    latest = librdkafka.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()})
    assert [found.offset for found in done(latest).values()] == [0]
    done(librdkafka.delete_topics([name]))
    assert refused_with(librdkafka.delete_topics([name])) == "UNKNOWN_TOPIC_OR_PART"


def test_librdkafka_changes_settings(librdkafka: AdminClient, name: str) -> None:
    done(librdkafka.create_topics([NewTopic(name, 1, 1)]))
    append = ConfigEntry(
        "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
    )
    resource = ConfigResource("topic", name, incremental_configs=[append])
    done(librdkafka.incremental_alter_configs([resource]))
    wanted = ConfigResource("topic", name)
    settings = done(librdkafka.describe_configs([wanted]))[wanted]
    assert settings["cleanup.policy"].value == "delete,compact"


def test_librdkafka_describes_the_cluster(librdkafka: AdminClient) -> None:
    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result(
        wait_seconds_max()
    )
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1
    assert cluster.authorized_operations


def test_librdkafka_looks_after_groups(librdkafka: AdminClient, name: str) -> None:
    done(librdkafka.create_topics([NewTopic(name, 1, 1)]))
    positions = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 7)])
    done(librdkafka.alter_consumer_group_offsets([positions]))
    asked = librdkafka.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
    (stored,) = done(asked)[name].topic_partitions
    assert (stored.topic, stored.offset) == (name, 7)
    listed = librdkafka.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(
        wait_seconds_max()
    )
    assert name in [group.group_id for group in listed.valid]
    described = done(librdkafka.describe_consumer_groups([name]))[name]
    assert described.state is ConsumerGroupState.EMPTY
    done(librdkafka.delete_consumer_groups([name]))
    assert refused_with(librdkafka.delete_consumer_groups([name])) == "GROUP_ID_NOT_FOUND"


def test_kafka_python_looks_after_topics_and_groups(kafka_python, name: str) -> None:
    admin = kafka_python
    admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    admin.create_partitions({name: 3})
    (described,) = admin.describe_topics([name])
    assert len(described["partitions"]) == 3
    partition = PythonPartition(name, 0)
    admin.alter_group_offsets(name, {partition: OffsetAndMetadata(4, "note", -1)})
    assert admin.list_group_offsets(name)[name][partition].offset == 4
    assert name in [group["group_id"] for group in admin.list_groups()]
    assert admin.describe_groups([name])[name]["group_state"] == "Empty"
    admin.delete_group_offsets(name, [partition])
    (directory,) = admin.describe_log_dirs()[0]["log_dirs"]
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    admin.delete_topics([name])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])
