"""Plans: every offset is read exactly once, in as many parts as asked for, within the limits."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.planning import (
    OffsetRange,
    group_small,
    limited,
    narrowed,
    split_ranges,
    time_first_ms,
)


def planned(start: int, end: int, partition: int = 0, topic: str = "a") -> OffsetRange:
    return OffsetRange(topic=topic, partition=partition, start=start, end=end)


def place(partition: int) -> TopicPartition:
    return TopicPartition("a", PartitionIndex(partition))


def test_a_wide_range_is_split_and_a_narrow_one_is_not() -> None:
    parts = split_ranges([planned(0, 1000), planned(0, 10, 1)], partitions_min=5)
    assert [(part.partition, part.start, part.end) for part in parts] == [
        (0, 0, 250),
        (0, 250, 500),
        (0, 500, 750),
        (0, 750, 1000),
        (1, 0, 10),
    ]


def test_ranges_that_are_many_enough_stay_whole() -> None:
    ranges = [planned(0, 1000), planned(0, 10, 1)]
    assert split_ranges(ranges, partitions_min=2) == ranges
    assert split_ranges(ranges) == ranges


def test_a_task_gets_no_more_records_than_allowed() -> None:
    parts = split_ranges([planned(5, 30)], records_max=10)
    assert [(part.start, part.end) for part in parts] == [(5, 13), (13, 21), (21, 30)]


def test_empty_ranges_make_no_tasks() -> None:
    assert split_ranges([planned(5, 5), planned(7, 3, 1)], partitions_min=4) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6),
    st.one_of(st.none(), st.integers(1, 20)),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_every_offset_is_in_exactly_one_part(
    sizes: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [planned(start, start + size, n) for n, (start, size) in enumerate(sizes)]
    parts = split_ranges(ranges, partitions_min=partitions_min, records_max=records_max)
    wanted = [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert [(p.partition, offset) for p in parts for offset in range(p.start, p.end)] == wanted
    assert all(part.size for part in parts)


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    ranges = [
        planned(0, 4, 0),
        planned(0, 20, 1),
        planned(0, 5, 2),
        planned(0, 6, 3),
        planned(0, 1, 4),
    ]
    tasks = group_small(ranges, offsets_min=10)
    assert [[part.partition for part in task] for task in tasks] == [[1], [0, 2, 3], [4]]
    assert [len(task) for task in group_small(ranges, offsets_min=1)] == [1] * 5
    assert group_small([], offsets_min=10) == []


def test_a_limit_is_shared_out_by_what_waits() -> None:
    found = limited({place(0): 0, place(1): 100}, {place(0): 300, place(1): 200}, 40)
    assert found == {place(0): 30, place(1): 110}


def test_a_small_partition_is_not_starved_by_a_large_one() -> None:
    found = limited({place(0): 0, place(1): 0}, {place(0): 10**9, place(1): 1}, 1000)
    assert found == {place(0): 999, place(1): 1}


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(-5, 99)), min_size=1, max_size=6),
    st.integers(1, 300),
)
def test_a_limit_is_kept_and_used_up(sizes: list[tuple[int, int]], offsets_max: int) -> None:
    starts = {place(n): start for n, (start, _) in enumerate(sizes)}
    ends = {place(n): start + size for n, (start, size) in enumerate(sizes)}
    found = limited(starts, ends, offsets_max)
    waiting = sum(max(0, size) for _, size in sizes)
    read = sum(max(0, found[where] - starts[where]) for where in ends)
    assert read == min(waiting, offsets_max)
    assert all(found[where] <= max(ends[where], starts[where]) for where in ends)


# -- filters: they never save a row from being read that could match


@dataclass
class Column:
    """The filters of Spark have these two fields, and mean what their class is called."""

    attribute: tuple[str, ...]
    value: Any


class EqualTo(Column): ...


class In(Column): ...


class GreaterThan(Column): ...


class GreaterThanOrEqual(Column): ...


class LessThan(Column): ...


class LessThanOrEqual(Column): ...


class StringStartsWith(Column): ...


@dataclass
class Not:
    child: Column


MOMENT = datetime(2023, 11, 14, 22, 13, 20, 1999, tzinfo=UTC)
RANGES = [planned(0, 100), planned(0, 100, 1), planned(50, 60, 0, "b")]


def test_partitions_and_topics_that_are_named_are_the_only_ones() -> None:
    one = [In(("partition",), (1, 2, 3)), EqualTo(("partition",), 1)]
    assert narrowed(RANGES, one) == [planned(0, 100, 1)]
    assert narrowed(RANGES, [*one, EqualTo(("partition",), 2)]) == []
    assert narrowed(RANGES, [EqualTo(("topic",), "b")]) == [planned(50, 60, 0, "b")]


def test_the_closest_bounds_of_offsets_hold() -> None:
    found = narrowed(
        RANGES,
        [
            GreaterThan(("offset",), 52),
            GreaterThanOrEqual(("offset",), 5),
            LessThanOrEqual(("offset",), 57),
            LessThan(("offset",), 59),
        ],
    )
    assert [(r.start, r.end) for r in found] == [(53, 58)] * 3
    assert narrowed(RANGES, [GreaterThan(("offset",), 99)]) == []


def test_listed_offsets_bound_what_is_read() -> None:
    found = narrowed(RANGES, [In(("offset",), (57, 53, 55))])
    assert [(r.start, r.end) for r in found] == [(53, 58)] * 3


def test_a_lower_bound_of_time_is_taken_down_to_whole_milliseconds() -> None:
    earlier = EqualTo(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC))
    filters = [GreaterThan(("timestamp",), MOMENT), earlier]
    assert time_first_ms(filters) == 1_700_000_000_001
    assert time_first_ms([]) is None


def test_an_upper_bound_of_time_saves_nothing() -> None:
    """Timestamps need not rise with offsets."""
    assert time_first_ms([LessThan(("timestamp",), MOMENT)]) is None


def test_filters_of_other_kinds_and_columns_are_passed_over() -> None:
    filters = [
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        StringStartsWith(("offset",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("partition",), None),
        In(("partition",), (7, None)),
        GreaterThan(("offset",), None),
        EqualTo(("timestamp",), None),
    ]
    assert narrowed(RANGES, filters) == RANGES
    assert time_first_ms(filters) is None
