"""Validates and normalises arguments of a consumer: topics, partitions and offsets."""

from collections.abc import Iterable, Mapping

from confluent_kafka import TopicPartition

from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.consumer_config import ConsumerConfig
from moldau.client.kafka.message import Message

Partition = tuple[str, int]

_OFFSET_MAX = 2**63 - 2


def topic_names(topics: object) -> list[str]:
    """A list of one or several topic names."""
    names: list[object]
    if isinstance(topics, str):
        names = [topics]
    elif isinstance(topics, Iterable):
        names = list(topics)
    else:
        names = []
    found = [name for name in names if isinstance(name, str) and name]
    if not found or len(found) != len(names):
        raise InvalidArgumentError(f"cannot subscribe to {topics!r}", hint='write ["orders"]')
    return found


def partition_keys(partitions: object) -> list[Partition]:
    """A list of (topic, partition) pairs."""
    pairs: list[object] = [partitions]
    if isinstance(partitions, Iterable) and not isinstance(partitions, str):
        pairs = list(partitions)
    keys = []
    for pair in pairs:
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], int)
            and not isinstance(pair[1], bool)
            and pair[1] >= 0
        ):
            raise InvalidArgumentError(f"invalid partition {pair!r}", hint='write [("orders", 0)]')
        keys.append((pair[0], pair[1]))
    return keys


def checked_offset(offset: object) -> int:
    """0 or more, and within Kafka's range."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _OFFSET_MAX:
        raise InvalidArgumentError(f"invalid offset {offset!r}", hint="an int, 0 or more")
    return offset


def next_offsets(done: Message | Mapping[Partition, int]) -> list[TopicPartition]:
    """The offsets to commit if all messages up to here are done: Kafka commits the next offset."""
    if isinstance(done, Message):
        return [TopicPartition(done.topic, done.partition, done.offset + 1)]
    if not isinstance(done, Mapping):
        raise InvalidArgumentError(
            f"cannot commit {done!r}", hint='a message, or {("orders", 0): offset}'
        )
    offsets = map(checked_offset, done.values())
    return [
        TopicPartition(*key, offset + 1)
        for key, offset in zip(partition_keys(done), offsets, strict=True)
    ]


def described(kind: str, config: ConsumerConfig, *, is_closed: bool) -> str:
    """For the repr of a consumer."""
    group = "no group" if config.group_id is None else f"group {config.group_id}"
    return f"<{kind} at {config.brokers}, {group}{', closed' if is_closed else ''}>"
