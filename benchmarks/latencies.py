"""Latencies of many messages as a histogram that is small, and can be added to another one."""

from __future__ import annotations

from collections import Counter

DIGITS = 3


def bucket(microseconds: int) -> int:
    """The latency with three digits that count: at most 1 % below it."""
    scale = int(10 ** max(0, len(str(microseconds)) - DIGITS))
    return microseconds // scale * scale


def percentile(histogram: Counter[int], share: float) -> int:
    """The least bucket that `share` of all values are in, or below."""
    total = histogram.total()
    if not total:
        raise ValueError("no latency was measured")
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen >= share * total:
            break
    return value


def summary(histogram: Counter[int]) -> dict[str, float]:
    """What is reported of a run, in microseconds."""
    return {
        "p50_us": percentile(histogram, 0.5),
        "p99_us": percentile(histogram, 0.99),
        "p999_us": percentile(histogram, 0.999),
        "max_us": max(histogram),
    }
