"""Owns positions in topics as checkpoints hold them: the Kafka connector's JSON, and topic ids.

    {"orders": {"0": 23, "1": 7}, "@ids": {"orders": 118274…}}

The ids tell a topic that was deleted and made again from the one that was read before, however many
records it holds by now. They are numbers, and no topic can have the name `@ids`, so that code which
subtracts one such JSON from another to get the lag still gets the lag. Positions of the Kafka
connector have no ids, and are taken as they are.

The end of a query's first batch also says where that batch begins (`"@start": {"orders/0": 23}`).
Spark keeps only ends, and asks for the start anew when the batch is run or repeated: by then
"latest" is another offset, and "earliest" hides what was deleted in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import NO_TOPIC_ID, PartitionIndex, TopicPartition

IDS: Final = "@ids"
START: Final = "@start"
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
    first: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the query began; known until its first batch is done."""

    @property
    def is_first(self) -> bool:
        """Nothing was read yet."""
        return bool(self.first) and self.first == self.offsets

    def topics(self) -> list[str]:
        return sorted({place.topic for place in self.offsets})

    def to_json(self) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        for place in sorted(self.offsets):
            result.setdefault(place.topic, {})[str(place.partition)] = self.offsets[place]
        if ids := {topic: self.ids[topic] for topic in result if topic in self.ids}:
            result[IDS] = ids
        if self.first:
            result[START] = {
                f"{place.topic}/{place.partition}": offset
                for place, offset in sorted(self.first.items())
            }
        return result

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises InvalidArgumentError for what is no position: a checkpoint of something else."""
        offsets = {}
        try:
            ids = {topic: int(number) for topic, number in found.get(IDS, {}).items()}
            first = {
                _place(*name.rsplit("/", 1)): int(offset)
                for name, offset in found.get(START, {}).items()
            }
            for topic, partitions in found.items():
                if topic in (IDS, START):
                    continue
                for partition, offset in partitions.items():
                    offsets[_place(topic, partition)] = int(offset)
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"the checkpoint holds {found!r}, which is no position in topics",
                hint="it belongs to another source: use another checkpointLocation",
            ) from None
        return cls(offsets=offsets, ids=ids, first=first)


def _place(topic: str, partition: str) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(int(partition)))
