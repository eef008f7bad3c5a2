"""Which offsets a batch reads, and how they are divided into tasks. Pure: no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from moldau.model.ids import PartitionIndex, TopicPartition

Offsets = Mapping[TopicPartition, int]
_BELOW: Final = {"LessThan": 0, "LessThanOrEqual": 1}
_ABOVE: Final = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_EQUAL: Final = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets from `start` to before `end` of one partition: the work of one task."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: int | None = None
    """Of the planned topic; a recreated topic of the same name is not read by mistake."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, PartitionIndex(self.partition))

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}-{self.partition}"


def ranges_of(starts: Offsets, ends: Offsets, ids: Mapping[str, int]) -> list[OffsetRange]:
    """The range of each partition, from its start to its end."""
    return [
        OffsetRange(
            topic=tp.topic,
            partition=tp.partition,
            start=starts[tp],
            end=end,
            topic_id=ids.get(tp.topic),
        )
        for tp, end in sorted(ends.items())
    ]


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[OffsetRange]:
    """Splits large ranges and drops empty ones.

    Small ranges stay whole, so the count may differ from `partitions_min`.
    """
    found = [planned for planned in ranges if planned.size]
    if records_max is not None:
        found = [
            part for planned in found for part in _split(planned, -(-planned.size // records_max))
        ]
    if partitions_min is None or len(found) >= partitions_min:
        return found
    total = sum(planned.size for planned in found)
    # Ranges below the average stay whole; the remaining tasks are for the large ones.
    large = [planned.size for planned in found if planned.size * partitions_min >= total]
    left = max(1, partitions_min - (len(found) - len(large)))
    result = []
    for planned in found:
        is_large = planned.size * partitions_min >= total
        result += _split(planned, round(planned.size / sum(large) * left) if is_large else 1)
    return result


def _split(planned: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(max(1, count), planned.size)
    edges = [planned.start + planned.size * number // count for number in range(count + 1)]
    return [replace(planned, start=edges[number], end=edges[number + 1]) for number in range(count)]


def group_small(
    ranges: Sequence[OffsetRange], *, offsets_min: int
) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: one range, or several small ones.

    A task costs as much as thousands of rows, so with one task per partition a micro-batch with few
    rows in each of many partitions would take many times as long.
    """
    result: list[tuple[OffsetRange, ...]] = []
    small: list[OffsetRange] = []
    small_size = 0
    for planned in ranges:
        if planned.size >= offsets_min:
            result.append((planned,))
            continue
        small.append(planned)
        small_size += planned.size
        if small_size >= offsets_min:
            result.append(tuple(small))
            small, small_size = [], 0
    return [*result, tuple(small)] if small else result


def limited(starts: Offsets, ends: Offsets, offsets_max: int) -> dict[TopicPartition, int]:
    """Ends with at most `offsets_max` offsets between them and `starts`, over all partitions.

    Each partition gets a share in proportion to its backlog. The remainder goes to those with the
    smallest relative share, so that a large partition does not starve small ones.
    """
    sizes = {tp: max(0, end - starts[tp]) for tp, end in ends.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(ends)
    shares = {tp: size * offsets_max // total for tp, size in sizes.items()}
    left = offsets_max - sum(shares.values())
    starved = sorted(
        (tp for tp, size in sizes.items() if shares[tp] < size),
        key=lambda tp: (shares[tp] / sizes[tp], tp),
    )
    for tp in starved[:left]:
        shares[tp] += 1
    return {tp: starts[tp] + shares[tp] if sizes[tp] else ends[tp] for tp in ends}


def narrowed(ranges: Iterable[OffsetRange], filters: Iterable[Any]) -> list[OffsetRange]:
    """The parts of the ranges that can match all filters on topic, partition and offset; others
    are ignored. It only saves reading: Spark applies all filters to the rows again."""
    found = list(ranges)
    for condition in filters:
        kind, column = type(condition).__name__, getattr(condition, "attribute", ())
        value: Any = getattr(condition, "value", None)
        listed = tuple(value) if kind == "In" else (value,) if kind in _EQUAL else ()
        if value is None or None in listed:
            continue
        if listed and column in (("partition",), ("topic",)):
            found = [planned for planned in found if getattr(planned, column[0]) in listed]
        elif column == ("offset",) and all(isinstance(each, int) for each in listed or (value,)):
            first = min(listed) if listed else value + _ABOVE[kind] if kind in _ABOVE else 0
            end = max(listed) + 1 if listed else value + _BELOW[kind] if kind in _BELOW else None
            found = [
                replace(r, start=max(r.start, first), end=r.end if end is None else min(r.end, end))
                for r in found
            ]
    return [planned for planned in found if planned.size]


def time_first_ms(filters: Iterable[Any]) -> int | None:
    """The highest lower bound of the filters on the timestamp.

    Brokers find the first record at or after a timestamp, and none before it can match a lower
    bound. Upper bounds cannot be used: timestamps need not increase with offsets.
    """
    found = []
    for each in filters:
        is_bound = type(each).__name__ in (*_ABOVE, *_EQUAL)
        if is_bound and each.attribute == ("timestamp",) and isinstance(each.value, datetime):
            time = each.value if each.value.tzinfo else each.value.replace(tzinfo=UTC)
            # Rounded down to milliseconds, so that no record is missed.
            found.append(max(0, int(time.timestamp() * 1000 // 1)))
    return max(found, default=None)
