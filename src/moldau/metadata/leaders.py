"""The table of partition leaders, as far as this broker knows.

Each partition's Raft group elects its leader; no metadata record stores it. Leaders announce
themselves to all brokers, and the highest epoch wins. The table is a hint that lets any broker
answer Metadata requests: a broker that is not the leader rejects the client's next request.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.metadata.image import Image
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX

NO_LEADER_ID: Final = BrokerId(-1)


class Leader(NamedTuple):
    """A leader and its epoch. Broker -1: no known leader."""

    broker: BrokerId = NO_LEADER_ID
    epoch: Epoch = NO_EPOCH

    def supersedes(self, other: "Leader") -> bool:
        """A higher epoch wins; within an epoch, a known leader wins over an unknown one."""
        if self.epoch != other.epoch:
            return self.epoch > other.epoch
        return other.broker == NO_LEADER_ID and self.broker != NO_LEADER_ID


NO_LEADER: Final = Leader()


class LeaderAnnouncement(NamedTuple):
    topic_id: TopicId
    partition: PartitionIndex
    leader: Leader


class Leaders:
    """An immutable table. A change copies the map of topics, and the changed topics."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Mapping[TopicId, tuple[Leader, ...]] = MappingProxyType({})) -> None:
        self._topics = topics

    def of(self, topic_id: TopicId, partition: PartitionIndex) -> Leader:
        """The leader of a partition, or NO_LEADER."""
        known = self._topics.get(topic_id, ())
        return known[partition] if 0 <= partition < len(known) else NO_LEADER

    def announced(self, announcements: Iterable[LeaderAnnouncement]) -> "Leaders":
        """The table after these; the same table if nothing changed.

        Topics are not checked against the image: an announcement may arrive before the topic.
        """
        changed: dict[TopicId, list[Leader]] = {}
        for topic_id, partition, leader in announcements:
            if not 0 <= partition < PARTITIONS_PER_TOPIC_MAX:
                continue
            known: list[Leader] | tuple[Leader, ...] = changed.get(
                topic_id, self._topics.get(topic_id, ())
            )
            before = known[partition] if partition < len(known) else NO_LEADER
            if not leader.supersedes(before):
                continue
            entries = changed.setdefault(topic_id, list(known))
            entries.extend([NO_LEADER] * (partition + 1 - len(entries)))
            entries[partition] = leader
        if not changed:
            return self
        topics = dict(self._topics)
        for topic_id, entries in changed.items():
            topics[topic_id] = tuple(entries)
        return Leaders(topics)

    def restricted_to(self, image: Image) -> "Leaders":
        """Without topics that are not in the image."""
        if all(topic_id in image.topics_by_id for topic_id in self._topics):
            return self
        return Leaders(
            {
                topic_id: entries
                for topic_id, entries in self._topics.items()
                if topic_id in image.topics_by_id
            }
        )
