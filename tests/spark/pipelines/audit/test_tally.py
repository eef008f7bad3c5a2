"""Sums that agree if and only if both sides hold the same rows, in whichever order and parts."""

from collections import Counter

import pytest

np = pytest.importorskip("numpy", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from moldau.spark.pipelines.audit.tally import (  # noqa: E402
    BUCKET_OFFSETS,
    BucketKey,
    Tallies,
    add_up,
    suspects,
    tally_identities,
    tally_rows,
    total,
)

Row = tuple[int, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 5, BUCKET_OFFSETS - 1, BUCKET_OFFSETS, 3 * BUCKET_OFFSETS]),
        st.integers(0, 2**64 - 1),
    ),
    max_size=12,
)


def tallied(rows: list[Row], *, log_start: int = 0, parts: int = 1) -> Tallies:
    result: Tallies = {}
    for part in range(parts):
        some = rows[part::parts]
        offsets = np.array([offset for offset, _ in some], dtype=np.int64)
        digests = np.array([digest for _, digest in some], dtype=np.uint64)
        add_up(result, tally_rows("t", 0, offsets, digests, log_start=log_start))
    return result


@given(ROWS, ROWS, st.randoms(use_true_random=False), st.integers(1, 3))
def test_sums_differ_exactly_where_rows_do(
    one: list[Row], other: list[Row], rng: object, parts: int
) -> None:
    shuffled = list(one)
    rng.shuffle(shuffled)
    assert suspects(tallied(one), tallied(shuffled, parts=parts)) == set()
    differing = (Counter(one) - Counter(other)) + (Counter(other) - Counter(one))
    wanted = {BucketKey("t", 0, False, offset // BUCKET_OFFSETS) for offset, _ in differing}
    assert suspects(tallied(one), tallied(other, parts=parts)) == wanted


def test_a_row_that_is_there_twice_counts_twice() -> None:
    assert suspects(tallied([(5, 7)]), tallied([(5, 7), (5, 7)])) == {BucketKey("t", 0, False, 0)}
    assert suspects(tallied([(5, 7)] * 2), tallied([(5, 7)] * 4)) == {BucketKey("t", 0, False, 0)}


def test_two_changes_that_cancel_out_in_one_sum_are_found_by_the_other() -> None:
    assert suspects(tallied([(0, 5), (1, 9)]), tallied([(0, 6), (1, 8)]))


def test_what_the_log_no_longer_has_is_suspect_only_where_it_has_holes() -> None:
    dense = [(offset, 3 * offset) for offset in range(100)]
    assert suspects({}, tallied(dense, log_start=100)) == set()
    assert suspects({}, tallied(dense[:50] + dense[51:], log_start=100))
    # As many rows as offsets, and yet one is there twice in the place of another.
    assert suspects({}, tallied([*dense[:50], dense[49], *dense[51:]], log_start=100))


def test_a_bucket_is_parted_where_the_log_starts() -> None:
    found = tallied([(1, 1), (2, 2), (3, 3)], log_start=2)
    assert {key.is_expired: tally.rows for key, tally in found.items()} == {True: 1, False: 2}
    assert total(found.values()).rows == 3


def test_identities_are_spread_and_summed() -> None:
    identities = np.arange(1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    one = tally_identities(identities, bucket_count=8)
    assert len(one) == 8
    assert sum(tally.rows for tally in one.values()) == 1000
    assert suspects(one, tally_identities(identities[::-1], bucket_count=8)) == set()
    assert len(suspects(one, tally_identities(identities[1:], bucket_count=8))) == 1
