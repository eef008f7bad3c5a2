"""Responsible for positions in topics as checkpoints hold them, and for what a stream reads next
from there. Pure: asks nobody. Positions are the Kafka connector's JSON, with the ids of topics:

    {"orders": {"0": 23, "1": 7}, "@ids": {"orders": 118274…}}

The ids tell a topic that was deleted and made again from the one that was read before, however many
records it holds by now. They are numbers, and no topic can have the name `@ids`, so that code which
subtracts one such JSON from another to get the lag still gets the lag. Positions of the Kafka
connector have no ids, and are taken as they are.

The end of a query's first batch also says where that batch begins (`"@start": {"orders/0": 23}`).
Spark keeps only ends, and asks for the start anew when the batch is run or repeated: by then
"latest" is another offset, and "earliest" hides what was deleted in between.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.model.ids import NO_TOPIC_ID, PartitionIndex, TopicPartition
from moldau.spark.source.planning import OffsetRange, Offsets, limited, ranges_of
from moldau.spark.source.read_options import Subscription

log = logging.getLogger(__name__)

IDS: Final = "@ids"
START: Final = "@start"
LOSS_HINT: Final = (
    "to go on without them, set option failOnDataLoss to false; to keep records for longer, raise "
    "retention.ms of the topic"
)
_ID_BYTES: Final = 6
"""So many bytes of an id fit into every reader of JSON, and are enough to tell two topics apart."""


class DataLossError(ClientError):
    """Records that the query should read were deleted before it came to them."""


def lost(message: str, *, fail: bool, hint: str = LOSS_HINT) -> None:
    """Raise DataLossError, or, where the user said so, log it and go on."""
    if fail:
        raise DataLossError(f"{message}: {hint}", hint=hint)
    log.warning("%s; going on, since failOnDataLoss is false", message)


def short_id(topic_id: bytes) -> int | None:
    """What positions keep of a topic's id; None if the topic has none."""
    return None if topic_id == NO_TOPIC_ID else int.from_bytes(topic_id[:_ID_BYTES], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The next offset of every partition, and the ids of the topics."""

    offsets: Offsets
    ids: Mapping[str, int] = field(default_factory=dict)
    first: Offsets = field(default_factory=dict)
    """Where the query began; known until its first batch is done."""

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
        try:
            ids = {topic: int(number) for topic, number in found.get(IDS, {}).items()}
            first = {
                _place(*name.rsplit("/", 1)): int(at) for name, at in found.get(START, {}).items()
            }
            offsets = {
                _place(topic, partition): int(offset)
                for topic, partitions in found.items()
                if topic not in (IDS, START)
                for partition, offset in partitions.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"the checkpoint holds {found!r}, which is no position in topics",
                hint="it belongs to another source: use another checkpointLocation",
            ) from None
        return cls(offsets=offsets, ids=ids, first=first)


def _place(topic: str, partition: str) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(int(partition)))


def check_checkpoint(start: Positions, names: Iterable[str], option: str) -> None:
    """A checkpoint in which nothing of what is read now was read before is somebody else's."""
    before, now = start.topics(), sorted(names)
    if before and now and not set(before) & set(now):
        raise InvalidArgumentError(
            f"the checkpoint is of {', '.join(before)}, and option {option} asks for "
            f"{', '.join(now)}: use another checkpointLocation, or the topics of before",
            hint="a checkpoint belongs to one query",
        )


def effective_starts(
    start: Positions, ends: Offsets, ids: Mapping[str, int]
) -> dict[TopicPartition, int]:
    """Where to go on in each partition of `ends`.

    Partitions that were not there before are read from their beginning, and so is a topic that was
    deleted and made again.
    """
    remade = remade_topics(start, ids)
    return {place: 0 if place.topic in remade else start.offsets.get(place, 0) for place in ends}


def remade_topics(start: Positions, ids: Mapping[str, int]) -> set[str]:
    return {topic for topic, known in start.ids.items() if topic in ids and ids[topic] != known}


def next_end(
    start: Positions,
    latest: Positions,
    *,
    asked: Subscription,
    offsets_max: int | None,
    offsets_min: int | None = None,
    fail_on_data_loss: bool,
) -> Positions:
    """Where the next batch ends; `start` itself if there is nothing to read, or not enough yet."""
    _tell_losses(start, latest, asked, fail=fail_on_data_loss)
    starts = effective_starts(start, latest.offsets, latest.ids)
    waiting = sum(max(0, end - starts[place]) for place, end in latest.offsets.items())
    if offsets_min is not None and waiting < offsets_min:
        return start
    ends = latest.offsets
    if offsets_max is not None:
        ends = limited(starts, ends, offsets_max)
    if ends == start.offsets and latest.ids == start.ids:
        # The same text as before, with where the first batch began: another one is a new batch.
        return start
    is_first = bool(start.first) and start.first == start.offsets
    return Positions(offsets=ends, ids=latest.ids, first=starts if is_first else {})


def _tell_losses(start: Positions, latest: Positions, asked: Subscription, *, fail: bool) -> None:
    missing = sorted(start.offsets.keys() - latest.offsets.keys())
    if left_out := [str(place) for place in missing if not asked.covers(place)]:
        said = f"{', '.join(left_out)} was read before, and option {asked.option} does not name it"
        leave = "to leave what was not read of it, set option failOnDataLoss to false"
        lost(f"{said} any more", fail=fail, hint=f"name it again, or, {leave}")
    if gone := [str(place) for place in missing if asked.covers(place)]:
        lost(f"{', '.join(gone)} cannot be read any more: deleted", fail=fail)
    if remade := sorted(remade_topics(start, latest.ids)):
        said = f"{', '.join(remade)} was deleted and made again"
        lost(f"{said}; what was left to read of it is gone", fail=fail)
    for place, offset in start.offsets.items():
        end = latest.offsets.get(place, offset)
        if place.topic not in remade and end < offset:
            lost(f"{place} ends at {end}, and was read up to {offset} before", fail=fail)


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """What a batch reads: the same however often it is planned.

    The start of the first batch was asked for anew, and may be another one by now. A batch that
    ends where the one before did has nothing to read, also if that was the first.
    """
    is_first = bool(end.first) and start != end
    starts = end.first if is_first else effective_starts(start, end.offsets, end.ids)
    return ranges_of(starts, end.offsets, end.ids)
