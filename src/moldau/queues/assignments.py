"""Assignments of consumers: the partitions to poll, their leaders and the leaders' addresses.

The epoch of an assignment is a checksum of its content. So every broker gives the same assignment
the same epoch, and a consumer that reconnects to another broker keeps what it has.
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
"""Cached this long: all consumers of a queue get the same assignment."""
_KEPT_MAX: Final = 1_000
_EPOCH_MASK: Final = 0x7FFF_FFFF


class Assignments:
    """Builds assignments from the leaders that this broker knows."""

    def __init__(
        self, *, clock: Clock, image: Callable[[], Image], leader_of: Callable[[Topic, int], Leader]
    ) -> None:
        self._clock = clock
        self._image = image
        self._leader_of = leader_of
        self._cache: dict[tuple[str, ...], tuple[float, Assignment]] = {}

    def of_topics(self, names: tuple[str, ...]) -> Assignment:
        now = self._clock.monotonic()
        at, cached = self._cache.get(names, (float("-inf"), None))
        if cached is not None and now - at < _KEPT_SECONDS:
            return cached
        image = self._image()
        topics = [topic for name in names if (topic := image.topic(name)) is not None]
        built = self._build(
            (topic, partition.index) for topic in topics for partition in topic.partitions
        )
        if len(self._cache) >= _KEPT_MAX:
            self._cache.clear()
        self._cache[names] = now, built
        return built

    def of_partitions(self, partitions: Mapping[TopicId, frozenset[int]]) -> Assignment:
        image = self._image()
        found = [
            (topic, PartitionIndex(index))
            for topic_id, indexes in partitions.items()
            if (topic := image.topic_by_id(topic_id)) is not None
            for index in indexes
            if index < len(topic.partitions)
        ]
        return self._build(sorted(found, key=lambda one: (one[0].name, one[1])))

    def _build(self, partitions: Iterable[tuple[Topic, PartitionIndex]]) -> Assignment:
        assigned = tuple(
            AssignedPartition(topic.name, index, leader, self._address(leader))
            for topic, index in partitions
            for leader in (self._leader_of(topic, index).broker,)
        )
        text = "\n".join(
            f"{one.topic} {one.partition} {one.leader} {one.address}" for one in assigned
        )
        # 0 is sent by consumers that have no assignment yet.
        epoch = zlib.crc32(text.encode()) & _EPOCH_MASK or 1
        return Assignment(epoch=epoch, partitions=assigned)

    def _address(self, leader: BrokerId) -> str:
        broker = self._image().brokers.get(leader)
        return str(broker.grpc) if broker is not None and broker.grpc is not None else ""
