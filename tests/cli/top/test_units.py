"""Figures as short texts."""

import pytest

from moldau.cli.top.units import byte_rate, count, duration, percent, size, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.4, "0.4"), (17.6, "18"), (9999, "9999"), (12345, "12.3k"),
     (999_999, "1.00M"), (5e12, "5.00T"), (5e18, "5000000T"), (-20_000, "-20.0k")],
)  # fmt: skip
def test_counts(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1024**2 - 1, "1.00 MiB"),
     (123.4 * 1024**3, "123 GiB"), (77.4 * 1024**2, "77.4 MiB")],
)  # fmt: skip
def test_sizes(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 s"), (0.0000451, "45 µs"), (0.0021, "2.1 ms"), (0.0996, "100 ms"),
     (1.25, "1.2 s"), (42.0, "42 s"), (300.0, "5 min"), (7200.0, "2 h"), (864_000.0, "10 d")],
)  # fmt: skip
def test_durations(value, text):
    assert duration(value) == text


def test_what_is_not_known_is_a_dash_and_no_rate():
    assert byte_rate(None) == "–"
    assert byte_rate(2048) == "2.00 KiB/s"
    assert percent(None, 1) == percent(1, None) == percent(1, 0) == "–"
    assert percent(0.421, 1) == "42%"


def test_a_sparkline_has_the_last_values():
    assert sparkline([5, 0, None, 7, 14], 4) == "▁ ▅█"
    assert sparkline([0, 0], 4) == "▁▁"
    assert sparkline([], 4) == ""
