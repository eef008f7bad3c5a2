"""Owns what a stream reads next: from positions that Spark kept, and from the topics as they are.

Pure: asks nobody. What is missing is told to `moldau.spark.source.losses`.
"""

from collections.abc import Iterable, Mapping

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import TopicPartition
from moldau.spark.source.losses import lost
from moldau.spark.source.planning import OffsetRange, limited
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import Subscription


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
    start: Positions, ends: Mapping[TopicPartition, int], ids: Mapping[str, int]
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
    ends: Mapping[TopicPartition, int] = latest.offsets
    if offsets_max is not None:
        ends = limited(starts, ends, offsets_max)
    if ends == start.offsets and latest.ids == start.ids:
        # The same text as before, with where the first batch began: another one is a new batch.
        return start
    return Positions(offsets=ends, ids=latest.ids, first=starts if start.is_first else {})


def _tell_losses(start: Positions, latest: Positions, asked: Subscription, *, fail: bool) -> None:
    missing = sorted(place for place in start.offsets if place not in latest.offsets)
    if left_out := [str(place) for place in missing if not asked.covers(place)]:
        lost(
            f"{', '.join(left_out)} was read before, and option {asked.option} does not name it "
            "any more",
            fail=fail,
            hint="name it again, or, to leave what was not read of it, set option failOnDataLoss "
            "to false",
        )
    if gone := [str(place) for place in missing if asked.covers(place)]:
        lost(f"{', '.join(gone)} cannot be read any more: deleted", fail=fail)
    remade = sorted(remade_topics(start, latest.ids))
    if remade:
        lost(
            f"{', '.join(remade)} was deleted and made again; what was left to read of it is gone",
            fail=fail,
        )
    for place, offset in start.offsets.items():
        end = latest.offsets.get(place)
        if place.topic not in remade and end is not None and end < offset:
            lost(f"{place} ends at {end}, and was read up to {offset} before", fail=fail)


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """What a batch reads: the same however often it is planned.

    The start of the first batch was asked for anew, and may be another one by now. A batch that
    ends where the one before did has nothing to read, also if that was the first.
    """
    is_first = bool(end.first) and start != end
    starts = end.first if is_first else effective_starts(start, end.offsets, end.ids)
    return [
        OffsetRange(
            topic=place.topic,
            partition=place.partition,
            start=starts[place],
            end=offset,
            topic_id=end.ids.get(place.topic),
        )
        for place, offset in sorted(end.offsets.items())
    ]
