"""Owns the way from what options say about start and end to offsets of every partition."""

from collections.abc import Mapping

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.cluster import (
    NO_OFFSET,
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    Cluster,
    TopicView,
)
from moldau.spark.source.losses import lost
from moldau.spark.source.read_options import EARLIEST, LATEST, Bound, ReadOptions

Offsets = dict[TopicPartition, int]


def places_of(topics: Mapping[str, TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, PartitionIndex(partition))
        for topic, view in topics.items()
        for partition in view.partitions
    ]


def starting_offsets(
    options: ReadOptions, cluster: Cluster, places: list[TopicPartition]
) -> Offsets:
    """Where to begin. Raises InvalidArgumentError, and DataLossError for deleted offsets."""
    bound = options.start
    if bound.is_time:
        found = cluster.offsets(_for_each(bound, places))
        without = [place for place in places if found[place] == NO_OFFSET]
        if without and options.start_without_match == "error":
            raise InvalidArgumentError(
                f"no record of {without[0]} is as young as option {bound.option} asks for",
                hint="to begin with what comes next there, set option "
                "startingOffsetsByTimestampStrategy to latest",
            )
        return found | cluster.latest(without)
    found = _resolved(bound, cluster, places)
    return _within(found, bound, options, cluster)


def ending_offsets(options: ReadOptions, cluster: Cluster, places: list[TopicPartition]) -> Offsets:
    """Where a batch ends: before the first record that is not read."""
    bound = options.end
    if not bound.is_time:
        return _resolved(bound, cluster, places)
    found = cluster.offsets(_for_each(bound, places))
    return found | cluster.latest([place for place in places if found[place] == NO_OFFSET])


def _resolved(bound: Bound, cluster: Cluster, places: list[TopicPartition]) -> Offsets:
    wanted = _for_each(bound, places)
    words = {LATEST: TIMESTAMP_LATEST, EARLIEST: TIMESTAMP_EARLIEST}
    asked = {place: words[number] for place, number in wanted.items() if number in words}
    return wanted | cluster.offsets(asked)


def _for_each(bound: Bound, places: list[TopicPartition]) -> Offsets:
    """The number of each partition; options that name some must name all."""
    if bound.named is None:
        everywhere = LATEST if bound.everywhere is None else bound.everywhere
        return dict.fromkeys(places, everywhere)
    named = {
        TopicPartition(topic, PartitionIndex(partition)): number
        for topic, numbers in bound.named.items()
        for partition, number in numbers.items()
    }
    missing = [place for place in places if place not in named]
    unknown = sorted(named.keys() - set(places))
    if missing:
        raise InvalidArgumentError(
            f"option {bound.option} names partitions, so it must name all that are read; "
            f"{missing[0]} is missing",
            hint="-1 is the latest offset, -2 the earliest",
        )
    if unknown:
        raise InvalidArgumentError(
            f"option {bound.option} names {unknown[0]}, which is not among what is read"
        )
    return named


def _within(found: Offsets, bound: Bound, options: ReadOptions, cluster: Cluster) -> Offsets:
    """Offsets that were given as numbers may be gone, or never have been there."""
    if bound.named is None:
        return found
    first, end = cluster.earliest(found), cluster.latest(found)
    result = dict(found)
    for place, offset in found.items():
        if first[place] <= offset <= end[place]:
            continue
        lost(
            f"option {bound.option} asks for offset {offset} of {place}, which has "
            f"{first[place]} to {end[place] - 1}",
            fail=options.fail_on_data_loss,
        )
        result[place] = min(max(offset, first[place]), end[place])
    return result
