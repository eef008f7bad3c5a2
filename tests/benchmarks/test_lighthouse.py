"""Scores of Lighthouse: which are too low."""

from typing import Any

from benchmarks.lighthouse import low_scores, table


def report(performance: float | None, accessibility: float) -> dict[str, Any]:
    names = ("first-contentful-paint", "largest-contentful-paint", "total-blocking-time")
    return {
        "categories": {
            "performance": {"score": performance},
            "accessibility": {"score": accessibility},
        },
        "audits": {name: {"displayValue": "1.5\xa0s"} for name in names},
    }


def test_a_page_below_the_least_score_is_named() -> None:
    results = {
        ("overview", "phone"): report(0.95, 1.0),
        ("settings", "desktop"): report(0.94, 0.9),
    }
    assert low_scores(results) == [
        "settings on a desktop: performance is 94, which is below 95",
        "settings on a desktop: accessibility is 90, which is below 95",
    ]


def test_what_could_not_be_judged_is_too_low() -> None:
    assert low_scores({("overview", "phone"): report(None, 1.0)}) == [
        "overview on a phone: performance is 0, which is below 95"
    ]


def test_the_table_has_a_line_for_each_page() -> None:
    lines = table({("overview", "phone"): report(0.98, 1.0)}).splitlines()
    assert lines[2:] == ["| overview | phone | 98 | 100 | 1.5 s | 1.5 s | 1.5 s |"]
    assert len({line.count("|") for line in lines}) == 1
