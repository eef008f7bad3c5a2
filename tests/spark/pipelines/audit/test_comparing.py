"""Rows compared one by one: against a slow comparison by counting."""

from collections import Counter

import pytest

np = pytest.importorskip("numpy", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from moldau.spark.pipelines.audit.comparing import (  # noqa: E402
    Copies,
    Finding,
    Found,
    compare_copies,
    compare_rows,
)
from moldau.spark.pipelines.audit.ranges import Range  # noqa: E402

TOPIC = st.dictionaries(st.integers(0, 12), st.integers(0, 3), max_size=10)
LAKE = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3)), max_size=14)


def compared(
    topic: dict[int, int], lake: list[tuple[int, int]], dead: set[int], *, is_expired: bool = False
) -> dict[Finding, Found]:
    found = compare_rows(
        np.array(list(topic), dtype=np.int64),
        np.array(list(topic.values()), dtype=np.uint64),
        np.array([offset for offset, _ in lake], dtype=np.int64),
        np.array([digest for _, digest in lake], dtype=np.uint64),
        np.array(sorted(dead), dtype=np.int64),
        is_expired=is_expired,
    )
    return {each.kind: each for each in found}


@given(TOPIC, LAKE, st.sets(st.integers(0, 12), max_size=4))
def test_each_kind_of_difference_is_counted(
    topic: dict[int, int], lake: list[tuple[int, int]], dead: set[int]
) -> None:
    found = compared(topic, lake, dead)
    counts = Counter(offset for offset, _ in lake)
    wanted = {
        Finding.MISSING: len(topic.keys() - counts.keys() - dead),
        Finding.DEAD: len((topic.keys() - counts.keys()) & dead),
        Finding.DUPLICATED: sum(count - 1 for count in counts.values()),
        Finding.EXTRA: sum(count for offset, count in counts.items() if offset not in topic),
        Finding.ALTERED: len(
            {offset for offset, digest in lake if topic.get(offset, digest) != digest}
        ),
    }
    assert {kind: each.rows for kind, each in found.items()} == {
        kind: rows for kind, rows in wanted.items() if rows
    }
    missing = found.get(Finding.MISSING)
    named = set() if missing is None else {(r.first, r.last) for r in missing.ranges}
    for offset in topic.keys() - counts.keys() - dead:
        assert any(first <= offset <= last for first, last in named)


def test_a_hole_that_nobody_reads_does_not_part_what_is_missing() -> None:
    # A transaction's marker stands at 3; 5 is there.
    found = compared({2: 0, 4: 0, 5: 0, 6: 0}, [(5, 0)], set())
    assert found[Finding.MISSING].ranges == (Range(2, 4, 2), Range(6, 6, 1))


def test_of_what_the_log_no_longer_has_only_doubles_are_told() -> None:
    found = compared({}, [(1, 0), (1, 0), (2, 0)], set(), is_expired=True)
    assert found == {Finding.DUPLICATED: Found(Finding.DUPLICATED, 1, (Range(1, 1, 1),))}


def test_a_double_with_another_content_is_also_altered() -> None:
    found = compared({1: 7}, [(1, 7), (1, 8)], set())
    assert set(found) == {Finding.DUPLICATED, Finding.ALTERED}


def copies(identities: list[int], *, place: int = 0) -> Copies:
    count = len(identities)
    return Copies(
        np.array(identities, dtype=np.uint64),
        np.full(count, place, dtype=np.int64),
        np.arange(count, dtype=np.int64),
    ).in_order()


IDENTITIES = st.lists(st.integers(0, 5), max_size=12)


@given(IDENTITIES, IDENTITIES, IDENTITIES)
def test_each_input_is_wanted_exactly_once(
    wanted: list[int], allowed: list[int], copied: list[int]
) -> None:
    found = compare_copies(copies(wanted), copies(allowed), copies(copied, place=1))
    rows = {kind: sum(len(f.offsets) for f in found if f.kind is kind) for kind in Finding}
    want, may, have = Counter(wanted), Counter(wanted) + Counter(allowed), Counter(copied)
    assert rows[Finding.MISSING] == sum((want - have).values())
    too_many = have - may
    assert rows[Finding.EXTRA] == sum(n for key, n in too_many.items() if key not in may)
    assert rows[Finding.DUPLICATED] == sum(n for key, n in too_many.items() if key in may)
    assert all(f.place == (0 if f.kind is Finding.MISSING else 1) for f in found)


def test_the_later_ones_of_too_many_copies_are_named() -> None:
    (found,) = compare_copies(copies([3, 4]), copies([]), copies([4, 3, 4, 4], place=1))
    assert (found.kind, found.place, found.offsets.tolist()) == (Finding.DUPLICATED, 1, [2, 3])
