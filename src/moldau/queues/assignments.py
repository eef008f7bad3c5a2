"""Owns what a consumer is told to poll: partitions, who leads them, and where that broker is.

An assignment is known by a number made from what is in it. So every broker gives the same one the
same number, and a consumer that asks another broker is not told anew what it knows.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.queues.types import AssignedPartition, Assignment

_KEPT_SECONDS: Final = 0.2
"""Consumers of a queue all ask for the same."""
_KEPT_MAX: Final = 1_000
_EPOCH_MASK: Final = 0x7FFF_FFFF


class Assignments:
    """Made from what this broker knows of leaders."""

    def __init__(
        self,
        *,
        clock: Clock,
        image: Callable[[], Image],
        leader_of: Callable[[Topic, int], Leader],
    ) -> None:
        self._clock = clock
        self._image = image
        self._leader_of = leader_of
        self._kept: dict[tuple[str, ...], tuple[float, Assignment]] = {}

    def of_topics(self, names: tuple[str, ...]) -> Assignment:
        """All partitions of these topics."""
        now = self._clock.monotonic()
        at, kept = self._kept.get(names, (float("-inf"), None))
        if kept is not None and now - at < _KEPT_SECONDS:
            return kept
        image = self._image()
        topics = [topic for name in names if (topic := image.topic(name)) is not None]
        made = self._made(
            (topic, partition.index) for topic in topics for partition in topic.partitions
        )
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[names] = now, made
        return made

    def of_partitions(self, partitions: Mapping[TopicId, frozenset[int]]) -> Assignment:
        image = self._image()
        found = [
            (topic, PartitionIndex(index))
            for topic_id, indexes in partitions.items()
            if (topic := image.topic_by_id(topic_id)) is not None
            for index in indexes
            if index < len(topic.partitions)
        ]
        return self._made(sorted(found, key=lambda one: (one[0].name, one[1])))

    def _made(self, partitions: Iterable[tuple[Topic, PartitionIndex]]) -> Assignment:
        assigned = tuple(
            AssignedPartition(topic.name, index, leader, self._address(leader))
            for topic, index in partitions
            for leader in (self._leader_of(topic, index).broker,)
        )
        text = "\n".join(
            f"{one.topic} {one.partition} {one.leader} {one.address}" for one in assigned
        )
        # 0 is what a consumer says that knows none yet.
        epoch = zlib.crc32(text.encode()) & _EPOCH_MASK or 1
        return Assignment(epoch=epoch, partitions=assigned)

    def _address(self, leader: BrokerId) -> str:
        broker = self._image().brokers.get(leader)
        return str(broker.grpc) if broker is not None and broker.grpc is not None else ""
