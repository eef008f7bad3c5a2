"""Owns where a pipeline begins after a reset: what was asked for, as offsets of every partition."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.kafka.client import OFFSET_EARLIEST, OFFSET_LATEST, KafkaClient
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.pipelines.checkpoints import committed_positions
from moldau.spark.pipelines.home import Home

_PLACE: Final = re.compile(r"(?P<topic>[\w.-]+):(?P<partition>\d{1,9})=(?P<offset>\d{1,18})")
_NO_OFFSET: Final = -1


class Target(NamedTuple):
    """What `--to` said: a moment for all (an end of the log, or a time in ms), or offsets."""

    moment: int | None
    offsets: Mapping[TopicPartition, int]


class Move(NamedTuple):
    """One partition, before and after. `start` is for the source: -2 stays the first there is."""

    place: TopicPartition
    before: int | None
    after: int
    start: int


def parse_offset(text: str) -> tuple[TopicPartition, int] | None:
    """`topic:partition=offset`; None if it is nothing of the kind."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    place = TopicPartition(found["topic"], PartitionIndex(int(found["partition"])))
    return place, int(found["offset"])


def planned_moves(client: KafkaClient, home: Home, target: Target) -> list[Move]:
    """What a reset would change. Raises InvalidArgumentError if there is nothing to move."""
    before = committed_positions(home.checkpoint)
    topics = {place.topic for place in (*before, *target.offsets)} or set(declared_topics(home))
    if not topics:
        raise InvalidArgumentError(
            f"pipeline {home.name} has no position in a topic: nothing to reset",
            hint=f"it keeps none, or has not come to its first batch yet; see {home.location}",
        )
    places = [place for topic in sorted(topics) for place in _places(client, topic)]
    for place in target.offsets:
        if place not in places:
            raise NotFoundError(f"there is no partition {place.topic}:{place.partition}")
    return [_move(client, place, before.get(place), target) for place in places]


def declared_topics(home: Home) -> Sequence[str]:
    """The topics that its settings name, where it has read none yet."""
    spec = home.read_spec()
    found: list[str] = []
    for name in ("topics", "topic"):
        value = spec.get(name)
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list):
            found += [str(item) for item in values]
    return found


def _places(client: KafkaClient, topic: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic, PartitionIndex(partition))
        for partition in sorted(client.layout(topic).leaders)
    ]


def _move(client: KafkaClient, place: TopicPartition, before: int | None, target: Target) -> Move:
    first = client.list_offset(place.topic, place.partition, OFFSET_EARLIEST)
    end = client.list_offset(place.topic, place.partition, OFFSET_LATEST)
    if place in target.offsets:
        wanted = target.offsets[place]
        if not first <= wanted <= end:
            raise InvalidArgumentError(
                f"{place.topic}:{place.partition} has no offset {wanted}",
                hint=f"it holds {first} to {end - 1}; {end} is what comes next",
            )
        return Move(place, before, wanted, wanted)
    match target.moment:
        case None:
            # Others were named: this one goes on where it is.
            kept = first if before is None else before
            return Move(place, before, kept, OFFSET_EARLIEST if before is None else before)
        case moment if moment == OFFSET_EARLIEST:
            return Move(place, before, first, OFFSET_EARLIEST)
        case moment if moment == OFFSET_LATEST:
            return Move(place, before, end, end)
        case moment:
            found = client.list_offset(place.topic, place.partition, moment)
            after = end if found == _NO_OFFSET else found
            return Move(place, before, after, after)


def apply_moves(home: Home, moves: Sequence[Move]) -> str | None:
    """Begin there. Returns where the checkpoint was moved to, if there was one."""
    starts: dict[str, dict[str, int]] = {}
    for move in moves:
        starts.setdefault(move.place.topic, {})[str(move.place.partition)] = move.start
    return home.reset(starts)
