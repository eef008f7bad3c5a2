"""Checks shared by several rules: topics, topic names and replica assignments."""

import re
from collections.abc import Sequence
from typing import Final

from moldau.metadata.config_types import shown
from moldau.metadata.image import BrokerState, Image, Partition, Topic
from moldau.metadata.placement import Replicas
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.limits import TOPIC_NAME_LENGTH_MAX

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def existing_topic(image: Image, name: str) -> Topic:
    topic = image.topics.get(name)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {shown(name)} does not exist"
        )
    return topic


def existing_partition(image: Image, name: str, index: int) -> tuple[Topic, Partition]:
    topic = existing_topic(image, name)
    if not 0 <= index < len(topic.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{name}' has {len(topic.partitions)} partitions; {index} is unknown",
        )
    return topic, topic.partitions[index]


def check_replication_factor(factor: int, image: Image) -> None:
    if factor < 1:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be at least 1, not {factor}",
        )
    if factor > len(image.active_brokers()):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {factor}, but the cluster has {count_brokers(image)}",
        )


def count_brokers(image: Image) -> str:
    """The number of brokers that can get replicas, for messages."""
    active = len(image.active_brokers())
    leaving = [broker.id for broker in image.brokers.values() if not broker.active]
    text = f"{active} {'broker' if active == 1 else 'brokers'}"
    if leaving:
        text += f" besides the draining {', '.join(str(broker) for broker in sorted(leaving))}"
    return text


def check_replicas(
    partition: int, replicas: Sequence[int], image: Image, kept: Sequence[BrokerId] = ()
) -> Replicas:
    """Validate a manual assignment of a partition. Brokers in `kept` are its replicas already."""
    if not replicas:
        raise invalid_assignment(f"Partition {partition} has no replicas")
    if len(set(replicas)) != len(replicas):
        raise invalid_assignment(f"Partition {partition} names a broker twice: {list(replicas)}")
    for number in replicas:
        broker = image.brokers.get(BrokerId(number))
        if broker is None:
            raise invalid_assignment(
                f"Partition {partition} names the unknown broker {number}; "
                f"known brokers: {sorted(image.brokers)}"
            )
        if broker.state is not BrokerState.ACTIVE and broker.id not in kept:
            raise invalid_assignment(
                f"Partition {partition} names broker {number}, which is being removed"
            )
    return tuple(BrokerId(number) for number in replicas)


def invalid_assignment(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def check_topic_name(name: str) -> None:
    """Kafka's rule; it also keeps every name inside its directory."""
    if not name:
        raise invalid_topic("A topic name must not be empty")
    if name in (".", ".."):
        raise invalid_topic("A topic cannot be named '.' or '..'")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise invalid_topic(
            f"Topic name {shown(name)} has {len(name)} characters, "
            f"but at most {TOPIC_NAME_LENGTH_MAX} are allowed"
        )
    if _NAME.fullmatch(name) is None:
        raise invalid_topic(
            f"Topic name {shown(name)} may only contain ASCII letters, digits, '.', '_' and '-'"
        )


def invalid_topic(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
