"""Every row gets one verdict, by the rule that the driver uses, too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.spark.pipelines.aggregate.transforms import (
    BAD,
    LATE,
    ON_TIME,
    Counting,
    Counts,
    classify,
)

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

ROWS = st.lists(
    st.tuples(st.none() | st.integers(-(10**7), 10**7), st.none() | st.just("broken")), max_size=20
)


@given(rows=ROWS, watermark_ms=st.integers(0, 10**4), zone=st.sampled_from(["UTC", "Asia/Tokyo"]))
def test_a_row_is_bad_or_late_or_on_time(
    rows: list[tuple[int | None, str | None]], watermark_ms: int, zone: str
) -> None:
    times = pa.array([time for time, _ in rows], pa.timestamp("us", tz=zone))
    errors = pa.array([error for _, error in rows], pa.string())
    expected = []
    for time, error in rows:
        if error is not None or time is None:
            expected.append(BAD)
        else:
            expected.append(LATE if time <= watermark_ms * 1000 else ON_TIME)
    assert classify(times, errors, watermark_ms).to_pylist() == expected


@given(
    event_us=st.integers(-(10**9), 10**9),
    watermark_ms=st.integers(0, 10**6),
    before_ms=st.integers(0, 10**6),
    width_us=st.integers(1, 10**8),
)
def test_what_is_on_time_is_never_dropped_by_spark(
    event_us: int, watermark_ms: int, before_ms: int, width_us: int
) -> None:
    """Spark drops by a watermark that is at most the batch's, at or before it."""
    times = pa.array([event_us], pa.timestamp("us", tz="UTC"))
    if classify(times, pa.nulls(1, pa.string()), watermark_ms).to_pylist() != [ON_TIME]:
        return
    sparks_us = min(watermark_ms, before_ms) * 1000
    window_end = (event_us // width_us + 1) * width_us
    assert not window_end <= sparks_us
    assert not event_us <= sparks_us


def test_a_task_that_runs_again_is_counted_once() -> None:
    told: list[Counts] = [{(3, 0): (5, 0, 1)}, {(3, 1): (2, 0, 0)}, {(3, 0): (5, 0, 1)}]
    seen: Counts = {}
    for each in told:
        seen = Counting().addInPlace(seen, each)
    assert [sum(counts) for counts in zip(*seen.values(), strict=True)] == [7, 0, 1]
