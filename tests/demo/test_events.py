"""Clicks of made-up visitors: the same for the same seed, and of the shape that the demo reads."""

import json

import pytest

from demo.events import PAGES, WAVE_SECONDS, Visitors, rate_at


def test_the_same_seed_makes_the_same_clicks() -> None:
    one, two, other = Visitors(7), Visitors(7), Visitors(8)
    clicks = [one.click(n) for n in range(50)]
    assert clicks == [two.click(n) for n in range(50)]
    assert clicks != [other.click(n) for n in range(50)]


def test_a_click_has_all_that_the_pipelines_use() -> None:
    visitors = Visitors()
    rows = [json.loads(visitors.click(n).value) for n in range(2000)]
    assert [row["id"] for row in rows] == list(range(1, 2001))
    counts = {page: sum(row["page"] == page for row in rows) for page in PAGES}
    assert counts[PAGES[0]] > counts[PAGES[-1]]
    assert all(row["took_ms"] > 0 for row in rows)
    assert {row["basket"] is not None for row in rows if row["page"] == "/checkout"} == {True}


def test_the_load_waves_around_its_mean() -> None:
    rates = [rate_at(n * WAVE_SECONDS / 100, 1000) for n in range(100)]
    assert [min(rates), max(rates)] == pytest.approx([500, 1500])
    assert sum(rates) / len(rates) == pytest.approx(1000)
