"""Owns positions in topics as checkpoints hold them: the Kafka connector's JSON, and topic ids.

    {"orders": {"0": 23, "1": 7}, "@ids": {"orders": 118274…}}

The ids tell a topic that was deleted and made again from the one that was read before, however many
records it holds by now. They are numbers, and no topic can have the name `@ids`, so that code which
subtracts one such JSON from another to get the lag still gets the lag. Positions of the Kafka
connector have no ids, and are taken as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import NO_TOPIC_ID, PartitionIndex, TopicPartition

IDS: Final = "@ids"
_ID_BYTES: Final = 6
"""So many bytes of an id fit into every reader of JSON, and are enough to tell two topics apart."""


def short_id(topic_id: bytes) -> int | None:
    """What positions keep of a topic's id; None if the topic has none."""
    if topic_id == NO_TOPIC_ID:
        return None
    return int.from_bytes(topic_id[:_ID_BYTES], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The next offset of every partition, and the ids of the topics."""

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, int] = field(default_factory=dict)

    def topics(self) -> list[str]:
        return sorted({place.topic for place in self.offsets})

    def to_json(self) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        for place in sorted(self.offsets):
            result.setdefault(place.topic, {})[str(place.partition)] = self.offsets[place]
        kept = {topic: self.ids[topic] for topic in result if topic in self.ids}
        return {**result, IDS: kept} if kept else result

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises InvalidArgumentError for what is no position: a checkpoint of something else."""
        offsets = {}
        try:
            ids = {topic: int(number) for topic, number in found.get(IDS, {}).items()}
            for topic, partitions in found.items():
                if topic == IDS:
                    continue
                for partition, offset in partitions.items():
                    place = TopicPartition(topic, PartitionIndex(int(partition)))
                    offsets[place] = int(offset)
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"the checkpoint holds {found!r}, which is no position in topics",
                hint="it belongs to another source: use another checkpointLocation",
            ) from None
        return cls(offsets=offsets, ids=ids)
