"""Owns which offsets a batch reads and how they are shared out to tasks. Pure: asks nobody."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from moldau.model.ids import TopicPartition


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
    def size(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}-{self.partition}"


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
    small = [planned for planned in found if planned.size * partitions_min < total]
    left = max(1, partitions_min - len(small))
    left_total = total - sum(planned.size for planned in small)
    result = []
    for planned in found:
        count = 1
        if planned.size * partitions_min >= total and left_total:
            count = max(1, round(planned.size / left_total * left))
        result += _cut(planned, count)
    return result


def _cut(planned: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, planned.size)
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


def limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What filters of a query say about partitions and offsets: whatever lies outside is not read.

    Filters are still applied to the rows by Spark: these bounds only save reading.
    """

    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    offset_first: int | None = None
    offset_end: int | None = None
    time_first_ms: int | None = None

    def narrowed(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """By all but the time, which only a broker can turn into offsets."""
        result = []
        for planned in ranges:
            if self.partitions is not None and planned.partition not in self.partitions:
                continue
            if self.topics is not None and planned.topic not in self.topics:
                continue
            start, end = planned.start, planned.end
            if self.offset_first is not None:
                start = max(start, self.offset_first)
            if self.offset_end is not None:
                end = min(end, self.offset_end)
            if start < end:
                result.append(replace(planned, start=start, end=end))
        return result
