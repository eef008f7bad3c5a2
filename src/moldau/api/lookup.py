"""Partitions and their leaders, with errors for clients."""

from moldau.api.broker import Broker
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError


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
