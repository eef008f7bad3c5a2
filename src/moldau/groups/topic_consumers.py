"""What a group has to do with one topic: its committed offsets there, or its subscription."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.groups.group import Group
from moldau.groups.offsets import subscriptions
from moldau.groups.results import GroupState
from moldau.model.ids import PartitionIndex, TopicPartition


class TopicConsumers(NamedTuple):
    state: str
    member_count: int
    """Of the group, whatever they consume."""
    offsets: tuple[tuple[int, int], ...] = ()
    """The committed offset of each partition that has one, in order."""


def consumers_of(
    group: Group,
    topic: str,
    partitions: int,
    consumer_topics: Callable[[Group], frozenset[str]],
    *,
    with_offsets: bool,
) -> TopicConsumers | None:
    """None if the group neither consumes the topic nor has committed an offset of it."""
    if group.state is GroupState.DEAD:
        return None
    offsets = _offsets_of(group, topic, partitions)
    first = next(offsets, None)
    if first is None and not _subscribes(group, topic, consumer_topics):
        return None
    found = () if first is None or not with_offsets else tuple(sorted((first, *offsets)))
    consumer = group.consumer
    if consumer is None:
        return TopicConsumers(str(group.state), len(group.members), found)
    return TopicConsumers(str(consumer.state), len(consumer.members), found)


def _offsets_of(group: Group, topic: str, partitions: int) -> Iterator[tuple[int, int]]:
    stored = group.offsets
    if partitions < len(stored):
        for index in range(partitions):
            committed = stored.get(TopicPartition(topic, PartitionIndex(index)))
            if committed is not None:
                yield index, committed.offset
        return
    for each, committed in stored.items():
        if each.topic == topic and each.partition < partitions:
            yield each.partition, committed.offset


def _subscribes(
    group: Group, topic: str, consumer_topics: Callable[[Group], frozenset[str]]
) -> bool:
    if group.has_consumers:
        return topic in consumer_topics(group)
    # None: its members use another protocol than consumers.
    return topic in (subscriptions(group) or ())
