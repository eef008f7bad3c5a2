"""Positions in topics as checkpoints store them, and what a stream reads next. Pure: no I/O.

Positions are the JSON of the Kafka connector, plus topic ids:

    {"orders": {"0": 23, "1": 7}, "@ids": {"orders": 118274…}}

The ids detect a topic that was deleted and recreated, however many records it holds now. They are
numbers, and `@ids` is not a valid topic name, so code that subtracts two such JSONs still gets the
lag. Positions of the Kafka connector have no ids, and are accepted as they are.

The end of a query's first batch also says where that batch starts (`"@start": {"orders/0": 23}`).
Spark stores only ends, and requests the start again when it runs or repeats the batch: by then
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
    "to continue without the lost records, set option failOnDataLoss to false; to keep records "
    "for longer, raise retention.ms of the topic"
)
_ID_BYTES: Final = 6
"""A number of this size is exact in every JSON reader, and enough to tell two topics apart."""


class DataLossError(ClientError):
    """Records were deleted before the query could read them."""


def report_data_loss(message: str, *, fail: bool, hint: str = LOSS_HINT) -> None:
    """Raises DataLossError, or only logs it with failOnDataLoss=false."""
    if fail:
        raise DataLossError(f"{message}: {hint}", hint=hint)
    log.warning("%s; continuing, since failOnDataLoss is false", message)


def short_id(topic_id: bytes) -> int | None:
    """The part of a topic id that positions store; None if the topic has none."""
    return None if topic_id == NO_TOPIC_ID else int.from_bytes(topic_id[:_ID_BYTES], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The next offset of every partition, and the ids of the topics."""

    offsets: Offsets
    ids: Mapping[str, int] = field(default_factory=dict)
    first: Offsets = field(default_factory=dict)
    """Where the query started; known until its first batch is done."""

    def topics(self) -> list[str]:
        return sorted({tp.topic for tp in self.offsets})

    def to_json(self) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        for tp in sorted(self.offsets):
            result.setdefault(tp.topic, {})[str(tp.partition)] = self.offsets[tp]
        if ids := {topic: self.ids[topic] for topic in result if topic in self.ids}:
            result[IDS] = ids
        if self.first:
            result[START] = {
                f"{tp.topic}/{tp.partition}": offset for tp, offset in sorted(self.first.items())
            }
        return result

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises InvalidArgumentError if these are not positions, but those of another source."""
        try:
            ids = {topic: int(number) for topic, number in found.get(IDS, {}).items()}
            first = {
                _tp(*name.rsplit("/", 1)): int(at) for name, at in found.get(START, {}).items()
            }
            offsets = {
                _tp(topic, partition): int(offset)
                for topic, partitions in found.items()
                if topic not in (IDS, START)
                for partition, offset in partitions.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"the checkpoint holds {found!r}, which are not positions in topics",
                hint="it belongs to another source: use another checkpointLocation",
            ) from None
        return cls(offsets=offsets, ids=ids, first=first)


def _tp(topic: str, partition: str) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(int(partition)))


def check_checkpoint(start: Positions, names: Iterable[str], option: str) -> None:
    """A checkpoint with none of the topics that are read now belongs to another query."""
    before, now = start.topics(), sorted(names)
    if before and now and not set(before) & set(now):
        raise InvalidArgumentError(
            f"the checkpoint is of {', '.join(before)}, but option {option} names "
            f"{', '.join(now)}: use another checkpointLocation, or the previous topics",
            hint="a checkpoint belongs to one query",
        )


def effective_starts(
    start: Positions, ends: Offsets, ids: Mapping[str, int]
) -> dict[TopicPartition, int]:
    """Where to continue; new partitions and recreated topics start at the beginning."""
    recreated = recreated_topics(start, ids)
    return {tp: 0 if tp.topic in recreated else start.offsets.get(tp, 0) for tp in ends}


def recreated_topics(start: Positions, ids: Mapping[str, int]) -> set[str]:
    return {topic for topic, known in start.ids.items() if topic in ids and ids[topic] != known}


def next_end(
    start: Positions,
    latest: Positions,
    *,
    subscription: Subscription,
    offsets_max: int | None,
    offsets_min: int | None = None,
    fail_on_data_loss: bool,
) -> Positions:
    """Where the next batch ends; `start` itself if there is nothing to read, or not enough yet."""
    _report_losses(start, latest, subscription, fail=fail_on_data_loss)
    starts = effective_starts(start, latest.offsets, latest.ids)
    backlog = sum(max(0, end - starts[tp]) for tp, end in latest.offsets.items())
    if offsets_min is not None and backlog < offsets_min:
        return start
    ends = latest.offsets
    if offsets_max is not None:
        ends = limited(starts, ends, offsets_max)
    if ends == start.offsets and latest.ids == start.ids:
        # Including `first`: any other JSON would be a new batch for Spark.
        return start
    is_first = bool(start.first) and start.first == start.offsets
    return Positions(offsets=ends, ids=latest.ids, first=starts if is_first else {})


def _report_losses(
    start: Positions, latest: Positions, subscription: Subscription, *, fail: bool
) -> None:
    missing = sorted(start.offsets.keys() - latest.offsets.keys())
    if left_out := [str(tp) for tp in missing if not subscription.covers(tp)]:
        report_data_loss(
            f"{', '.join(left_out)} was read before, but option {subscription.option} no longer "
            "names it",
            fail=fail,
            hint="name it again; to skip its unread records, set option failOnDataLoss to false",
        )
    if deleted := [str(tp) for tp in missing if subscription.covers(tp)]:
        report_data_loss(f"{', '.join(deleted)} was deleted", fail=fail)
    if recreated := sorted(recreated_topics(start, latest.ids)):
        report_data_loss(
            f"{', '.join(recreated)} was deleted and recreated; its unread records are lost",
            fail=fail,
        )
    for tp, offset in start.offsets.items():
        end = latest.offsets.get(tp, offset)
        if tp.topic not in recreated and end < offset:
            report_data_loss(f"{tp} ends at {end}, but was read up to {offset} before", fail=fail)


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """What a batch reads; the same however often it is planned.

    The start of the first batch may have changed since, so its stored start counts. A batch that
    ends where the previous one did is empty, even after the first.
    """
    is_first = bool(end.first) and start != end
    starts = end.first if is_first else effective_starts(start, end.offsets, end.ids)
    return ranges_of(starts, end.offsets, end.ids)
