"""Two samples of a broker make rates and quantiles; samples of several are added."""

from typing import Any

import pytest
from msgspec.structs import replace

from moldau.api.overview.sample import (
    BrokerSample,
    Span,
    added,
    decode_sample,
    encode_sample,
    quantile_ms,
)
from moldau.model.histogram import SECONDS, Histogram


def sample(at: float, **fields: Any) -> BrokerSample:
    return BrokerSample(at=at, version="1", started_at_ms=7, **fields)


def counts(*seconds: float) -> tuple[int, ...]:
    found = Histogram()
    for each in seconds:
        found.add(each)
    return tuple(found.counts)


def test_a_rate_is_the_rise_per_second_of_the_broker_itself():
    span = Span.of(sample(10.0, bytes_in=100), sample(12.0, bytes_in=300))
    assert span is not None
    assert span.rate("bytes_in") == 100
    # A topic was deleted, and what it had counted with it.
    assert Span(sample(10.0, bytes_in=100), sample(12.0, bytes_in=50)).rate("bytes_in") == 0


def test_samples_of_two_processes_are_not_compared():
    old = sample(10.0)
    assert Span.of(old, replace(sample(12.0), started_at_ms=8)) is None
    assert Span.of(old, sample(9.0)) is None
    assert Span.of(None, old) is None
    assert Span.of(old, None) is None


def test_quantiles_are_of_what_came_between_and_of_all_brokers():
    slow = Span(sample(1.0, produce=counts(0.3)), sample(2.0, produce=counts(0.3, 0.3)))
    fast = Span(sample(1.0, produce=counts()), sample(2.0, produce=counts(*[0.0005] * 98)))
    whole = added(span.buckets("produce") for span in (slow, fast))
    assert sum(whole) == 99
    low, high = quantile_ms(0.5, whole), quantile_ms(0.999, whole)
    assert low is not None
    assert high is not None
    assert 0.25 < low <= 0.5
    assert 250 < high <= 500


def test_a_broker_with_other_buckets_is_left_out():
    other = Span(sample(1.0), sample(2.0, produce=(1, 2, 3)))
    assert other.buckets("produce") == []
    assert added([(1, 2, 3)]) == [0] * (len(SECONDS) + 1)


@pytest.mark.parametrize("found", [[], [0] * (len(SECONDS) + 1), [1, 2]])
def test_nothing_measured_has_no_quantile(found):
    assert quantile_ms(0.99, found) is None


def test_what_took_longer_than_all_buckets_is_the_longest_of_them():
    assert quantile_ms(0.99, counts(60.0)) == SECONDS[-1] * 1000


def test_a_sample_reads_back_also_with_fields_that_it_does_not_know():
    sent = sample(1.0, reasons=("starting",), lag_records=4)
    assert decode_sample(encode_sample(sent)) == sent
