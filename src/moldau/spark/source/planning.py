"""Responsible for which offsets a batch reads, and how they are shared out to tasks. Pure: asks
nobody."""

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
    """Of the topic that was planned for; another one of its name is not read by mistake."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, PartitionIndex(self.partition))

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}-{self.partition}"


def ranges_of(starts: Offsets, ends: Offsets, ids: Mapping[str, int]) -> list[OffsetRange]:
    """What lies between, by partition."""
    return [
        OffsetRange(
            topic=place.topic,
            partition=place.partition,
            start=starts[place],
            end=end,
            topic_id=ids.get(place.topic),
        )
        for place, end in sorted(ends.items())
    ]


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[OffsetRange]:
    """The same offsets in as many ranges as asked for; empty ones are left out.

    Wide ranges are split and narrow ones stay whole, so there may be a few more or fewer than
    `partitions_min`, as with the Kafka connector.
    """
    found = [planned for planned in ranges if planned.size]
    if records_max is not None:
        found = [
            part for planned in found for part in _cut(planned, -(-planned.size // records_max))
        ]
    if partitions_min is None or len(found) >= partitions_min:
        return found
    total = sum(planned.size for planned in found)
    # Ranges below their share stay as they are; what is left to do goes to the wide ones.
    wide = [planned.size for planned in found if planned.size * partitions_min >= total]
    left = max(1, partitions_min - (len(found) - len(wide)))
    result = []
    for planned in found:
        is_wide = planned.size * partitions_min >= total
        result += _cut(planned, round(planned.size / sum(wide) * left) if is_wide else 1)
    return result


def _cut(planned: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(max(1, count), planned.size)
    edges = [planned.start + planned.size * number // count for number in range(count + 1)]
    return [replace(planned, start=edges[number], end=edges[number + 1]) for number in range(count)]


def shared_out(ranges: Sequence[OffsetRange], *, offsets_min: int) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: one range, or several that are small.

    A task costs as much as thousands of rows, so a batch of a few rows of each of many partitions
    would take many times as long if each had a task of its own.
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
    """Ends that are at most `offsets_max` offsets away from `starts`, all partitions together.

    Each partition gets a part in proportion to what waits in it. What division leaves over goes to
    those that would get the least, so that small partitions are not starved by a large one.
    """
    sizes = {place: max(0, end - starts[place]) for place, end in ends.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(ends)
    parts = {place: size * offsets_max // total for place, size in sizes.items()}
    left = offsets_max - sum(parts.values())
    # The remainder goes to those that got the least of what they have.
    hungry = sorted(
        (place for place, size in sizes.items() if parts[place] < size),
        key=lambda place: (parts[place] / sizes[place], place),
    )
    for place in hungry[:left]:
        parts[place] += 1
    return {place: starts[place] + parts[place] if sizes[place] else ends[place] for place in ends}


def narrowed(ranges: Iterable[OffsetRange], filters: Iterable[Any]) -> list[OffsetRange]:
    """What filters of a query leave of the ranges, all filters together. It only saves reading:
    Spark applies filters to the rows once more. Those that say nothing about places are passed
    over."""
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
    """The latest lower bound of filters on the timestamp.

    Timestamps need not rise with offsets, but the first record at or after a time is what brokers
    find, and none before it can match a lower bound. An upper bound would not do.
    """
    found = []
    for each in filters:
        is_bound = type(each).__name__ in (*_ABOVE, *_EQUAL)
        if is_bound and each.attribute == ("timestamp",) and isinstance(each.value, datetime):
            moment = each.value if each.value.tzinfo else each.value.replace(tzinfo=UTC)
            # Down to whole milliseconds, so that nothing is missed.
            found.append(max(0, int(moment.timestamp() * 1000 // 1)))
    return max(found, default=None)
