"""Plans: every offset is read exactly once, in as many parts as asked for, within the limits."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.planning import (
    Narrowing,
    OffsetRange,
    limited,
    shared_out,
    split_ranges,
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
    tasks = shared_out(ranges, offsets_min=10)
    assert [[part.partition for part in task] for task in tasks] == [[1], [0, 2, 3], [4]]
    assert [len(task) for task in shared_out(ranges, offsets_min=1)] == [1] * 5
    assert shared_out([], offsets_min=10) == []


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


def test_filters_leave_out_partitions_topics_and_offsets() -> None:
    ranges = [planned(0, 100), planned(0, 100, 1), planned(50, 60, 0, "b")]
    assert Narrowing(partitions=frozenset({1})).narrowed(ranges) == [planned(0, 100, 1)]
    assert Narrowing(topics=frozenset({"b"})).narrowed(ranges) == [planned(50, 60, 0, "b")]
    found = Narrowing(offset_first=55, offset_end=58).narrowed(ranges)
    assert [(r.start, r.end) for r in found] == [(55, 58)] * 3
    assert Narrowing(offset_first=100).narrowed(ranges) == []
