"""Offsets as ranges."""

from itertools import pairwise

import pytest

np = pytest.importorskip("numpy", reason="the extra `spark` is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from moldau.spark.pipelines.audit.ranges import Range, merged, ranges_of, shown  # noqa: E402

OFFSETS = st.sets(st.integers(0, 60))


@given(OFFSETS)
def test_ranges_are_the_offsets_and_do_not_touch(offsets: set[int]) -> None:
    found = ranges_of(np.array(sorted(offsets), dtype=np.int64))
    assert {n for each in found for n in range(each.first, each.last + 1)} == offsets
    assert all(one.last + 1 < two.first for one, two in pairwise(found))
    assert all(each.rows == each.last - each.first + 1 for each in found)


@given(OFFSETS, st.integers(0, 60))
def test_parts_merge_to_what_the_whole_gives(offsets: set[int], cut: int) -> None:
    whole = np.array(sorted(offsets), dtype=np.int64)
    parts = [*ranges_of(whole[whole >= cut]), *ranges_of(whole[whole < cut])]
    assert merged(parts) == ranges_of(whole)


def test_ranges_read_as_people_write_them() -> None:
    ranges = [Range(5, 9, 5), Range(12, 12, 1), Range(20, 30, 11)]
    assert shown(ranges, 2) == "5-9, 12 and 1 more"
    assert shown(ranges, 3) == "5-9, 12, 20-30"
