"""Durations fall into the bucket whose bound they do not pass."""

import pytest

from moldau.model.histogram import SECONDS, Histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (SECONDS[0], 0), (SECONDS[0] * 1.01, 1), (SECONDS[-1], len(SECONDS) - 1)],
)
def test_a_bound_belongs_to_its_bucket(seconds, bucket):
    histogram = Histogram()
    histogram.add(seconds)
    assert histogram.counts.index(1) == bucket


def test_what_is_longer_than_all_bounds_is_counted_too():
    histogram = Histogram()
    histogram.add(1000.0)
    histogram.add(0.5)
    assert (histogram.counts[-1], sum(histogram.counts), histogram.sum) == (1, 2, 1000.5)
