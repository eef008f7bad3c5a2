"""Owns the table of leaders: who leads which partition, as far as this broker has heard.

Leadership is the business of each partition's Raft group and stands in no metadata record. Leaders
announce themselves to all brokers; a later epoch wins. The table is a hint that lets any broker
answer Metadata: a client that is sent to the wrong broker is told so there.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.metadata.image import Image
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX

NO_LEADER_ID: Final = BrokerId(-1)


class Leader(NamedTuple):
    """Who leads, since which epoch. Broker -1: nobody is known to lead."""

    broker: BrokerId = NO_LEADER_ID
    epoch: Epoch = NO_EPOCH

    def beats(self, other: "Leader") -> bool:
        """Within an epoch there is one leader; hearing its name beats not having heard it."""
        if self.epoch != other.epoch:
            return self.epoch > other.epoch
        return other.broker == NO_LEADER_ID and self.broker != NO_LEADER_ID


NO_LEADER: Final = Leader()


class LeaderAnnouncement(NamedTuple):
    """One line of what a broker tells all others."""

    topic_id: TopicId
    partition: PartitionIndex
    leader: Leader


class Leaders:
    """An immutable table. A change copies the list of topics and those topics that change."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Mapping[TopicId, tuple[Leader, ...]] = MappingProxyType({})) -> None:
        self._topics = topics

    def of(self, topic_id: TopicId, partition: PartitionIndex) -> Leader:
        """The leader of a partition, or NO_LEADER."""
        known = self._topics.get(topic_id, ())
        return known[partition] if 0 <= partition < len(known) else NO_LEADER

    def announced(self, announcements: Iterable[LeaderAnnouncement]) -> "Leaders":
        """The table after these; the table itself if none of them is news.

        Topics are not looked up in the image: an announcement may come before the topic's record.
        """
        changed: dict[TopicId, list[Leader]] = {}
        for topic_id, partition, leader in announcements:
            if not 0 <= partition < PARTITIONS_PER_TOPIC_MAX:
                continue
            known: list[Leader] | tuple[Leader, ...] = changed.get(
                topic_id, self._topics.get(topic_id, ())
            )
            before = known[partition] if partition < len(known) else NO_LEADER
            if not leader.beats(before):
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

    def only(self, image: Image) -> "Leaders":
        """Without the topics that the image does not have: call it when topics were deleted."""
        if all(topic_id in image.topics_by_id for topic_id in self._topics):
            return self
        return Leaders(
            {
                topic_id: entries
                for topic_id, entries in self._topics.items()
                if topic_id in image.topics_by_id
            }
        )
