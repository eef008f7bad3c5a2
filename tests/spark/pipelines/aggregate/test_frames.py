"""Every row gets one verdict, by the rule that the driver uses, too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.spark.pipelines.aggregate.batches import is_late
from moldau.spark.pipelines.aggregate.frames import BAD, LATE, ON_TIME, verdicts_of

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
            expected.append(LATE if is_late(time, watermark_ms) else ON_TIME)
    assert verdicts_of(times, errors, watermark_ms).to_pylist() == expected
