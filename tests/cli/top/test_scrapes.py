"""Parsing of /metrics, and rates from two scrapes."""

import math

import pytest

from moldau.cli.top.scrapes import Scrape, Span, added, quantile
from moldau.model.histogram import Histogram
from moldau.model.prometheus_text import counter, gauge, histogram, render


def span(old: str | None, new: str, seconds: float = 2.0) -> Span:
    return Span(None if old is None else Scrape(old, 10.0), Scrape(new, 10.0 + seconds))


def test_what_the_broker_renders_is_read_back():
    family = counter("written_total", "Help.")
    odd = 'a "quoted\\name"\nof {two} lines } 7'
    family.add(3, {"topic": odd, "kind": "x"})
    family.add(4.5, {"topic": "plain", "kind": "x"})
    scrape = Scrape(render([family, gauge("free", "Free.", 12)]), 0.0)
    assert scrape.table("written_total", "topic") == {(odd,): 3, ("plain",): 4.5}
    assert scrape.table("written_total", "kind", topic="plain") == {("x",): 4.5}
    assert scrape.value("written_total") == 7.5
    assert scrape.value("written_total", topic="plain") == 4.5
    assert scrape.value("free") == 12


def test_an_unknown_metric_and_odd_lines_are_nothing():
    scrape = Scrape("# TYPE a gauge\n\na\nb x\nc NaN\nd 1 1700000000\ne{x=} 2\n\x00\n", 0.0)
    assert [scrape.value(name) for name in "abc"] == [None, None, None]
    assert scrape.value("d") == 1
    assert scrape.value("e", x="1") is None
    assert scrape.table("e", "x") == {}


def test_rates_are_of_the_time_between_two_scrapes():
    pair = span('n{t="a"} 10\nn{t="b"} 5\n', 'n{t="a"} 30\nn{t="b"} 5\n')
    assert pair.rate("n") == 10
    assert pair.rates("n", "t") == {("a",): 10, ("b",): 0}
    assert pair.rate("n", t="b") == 0
    assert pair.rate("missing") is None


def test_one_scrape_has_no_rates():
    assert span(None, "n 10").rate("n") is None
    assert span("n 5", "n 10", seconds=0.0).rate("n") is None


@pytest.mark.parametrize(
    ("old", "new", "rate"),
    [("n 100", "n 4", 2), ("n 100", "n 0", 0), ("m 1", "n 4", 2), ("n 100", "m 4", None)],
    ids=["reset", "reset to nothing", "new series", "gone"],
)
def test_a_counter_that_was_reset_counts_from_zero(old, new, rate):
    assert span(old, new).rate("n") == rate


def durations(*seconds: float) -> str:
    found, family = Histogram(), histogram("took_seconds", "Help.")
    for each in seconds:
        found.add(each)
    family.add_durations(found, {"api": "Produce"})
    return render([family])


def test_quantiles_are_of_what_was_added_between_the_scrapes():
    before = durations(*[9.0] * 1000)
    after = durations(*[9.0] * 1000, *[0.003] * 98, 0.4, 0.4)
    buckets = span(before, after).buckets("took_seconds", api="Produce")
    assert buckets[math.inf] == 100
    assert quantile(0.5, buckets) == pytest.approx(0.0025 + 0.0025 * 50 / 98)
    assert quantile(0.99, buckets) == pytest.approx(0.25 + 0.25 / 2)
    assert quantile(0.99, span(before, before).buckets("took_seconds")) is None
    assert quantile(0.99, {}) is None


def test_durations_beyond_the_last_bound_are_at_least_that_bound():
    assert quantile(0.5, span(durations(), durations(60.0)).buckets("took_seconds")) == 10.0


def test_the_histograms_of_brokers_are_added():
    assert added([{0.1: 1, math.inf: 2}, {0.1: 3, math.inf: 3}]) == {0.1: 4, math.inf: 5}
