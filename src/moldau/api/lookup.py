"""Lookup of topics and partition leaders, with errors for clients."""

from collections.abc import Sequence

from moldau.api.broker import Broker
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import Topology, TopologyTopic


def find_topic(broker: Broker, name: str) -> Topic:
    """Raises RefusedError."""
    topic = broker.image.topic(name)
    if topic is None:
        raise _unknown_topic(name)
    return topic


def _unknown_topic(name: str) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist")


def select_topics(topology: Topology, names: Sequence[str]) -> tuple[TopologyTopic, ...]:
    """These topics, each once. Raises RefusedError."""
    by_name = {topic.name: topic for topic in topology.topics}
    for name in names:
        if name not in by_name:
            raise _unknown_topic(name)
    return tuple(by_name[name] for name in dict.fromkeys(names))


def check_partition(topic: Topic, partition: int) -> None:
    """Raises RefusedError."""
    if not 0 <= partition < len(topic.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{topic.name}' has no partition {partition}; it has {len(topic.partitions)}",
        )


def remote_leader(broker: Broker, topic: Topic, partition: int) -> int | None:
    """The leader of the partition; None if it is this broker. Raises RefusedError."""
    check_partition(topic, partition)
    leader = broker.cluster.leader_of(topic, partition).broker
    if leader == NO_LEADER_ID:
        raise RefusedError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{partition} has no leader at the moment"
        )
    return None if leader == broker.broker_id else int(leader)
