from collections import Counter

import pytest

from benchmarks.latencies import bucket, percentile, summary


@pytest.mark.parametrize(
    ("value", "kept"), [(0, 0), (7, 7), (999, 999), (1234, 1230), (98_765, 98_700)]
)
def test_a_bucket_has_three_digits(value: int, kept: int) -> None:
    assert bucket(value) == kept


def test_percentiles_of_a_histogram_are_those_of_its_values() -> None:
    histogram = Counter(dict.fromkeys(range(1, 1001), 1))
    assert summary(histogram) == {"p50_us": 500, "p99_us": 990, "p999_us": 999, "max_us": 1000}


def test_slices_of_a_run_add_up() -> None:
    first, second = Counter({100: 99}), Counter({100: 900, 5000: 1})
    assert percentile(first + second, 0.999) == 100
    assert percentile(first + second, 1.0) == 5000


def test_nothing_measured_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no latency"):
        percentile(Counter(), 0.5)
