"""Histograms of durations: each is counted in the bucket that Prometheus expects."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.model.histogram import SECONDS, Histogram, total
from moldau.model.prometheus_text import histogram

DURATIONS = st.lists(
    st.tuples(st.floats(0, 100) | st.sampled_from(SECONDS), st.integers(1, 5)), max_size=40
)


def added(durations: list[tuple[float, int]]) -> Histogram:
    found = Histogram()
    for seconds, count in durations:
        found.add(seconds, count)
    return found


@given(durations=DURATIONS)
def test_a_bucket_counts_all_durations_up_to_its_bound(durations: list[tuple[float, int]]) -> None:
    family = histogram("h", "help")
    family.add_durations(added(durations))
    buckets = {
        float(labels["le"]): value
        for suffix, labels, value in family.samples
        if suffix == "_bucket"
    }
    assert [*buckets] == [*SECONDS, float("inf")]
    for bound, value in buckets.items():
        assert value == sum(count for seconds, count in durations if seconds <= bound)
    values = {suffix: value for suffix, _, value in family.samples if suffix != "_bucket"}
    assert values["_count"] == sum(count for _, count in durations)
    assert abs(values["_sum"] - sum(seconds * count for seconds, count in durations)) < 1e-6


@given(first=DURATIONS, second=DURATIONS)
def test_a_total_is_as_if_all_were_counted_in_one(
    first: list[tuple[float, int]], second: list[tuple[float, int]]
) -> None:
    parts = [added(first), added(second)]
    whole = total(parts)
    assert whole.counts == added(first + second).counts
    assert abs(whole.sum - parts[0].sum - parts[1].sum) < 1e-6
    # And the parts stay as they are.
    assert parts[0].counts == added(first).counts
