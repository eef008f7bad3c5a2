"""A histogram of durations; adding one costs a search in a short tuple."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

SECONDS: Final[tuple[float, ...]] = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the buckets; a last one counts longer durations."""

SHORTEST: Final = 0.0001
"""Durations up to this belong to the first bucket."""


class Histogram:
    """The number of durations per bucket, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(SECONDS) + 1)
        """Per bucket, not cumulative."""
        self.sum = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` times the same duration."""
        if seconds <= SHORTEST:
            # Nearly always.
            self.counts[0] += count
        else:
            self.counts[bisect_left(SECONDS, seconds)] += count
        self.sum += seconds * count


def total(parts: Iterable[Histogram]) -> Histogram:
    """A new histogram of all durations."""
    whole = Histogram()
    for part in parts:
        whole.sum += part.sum
        whole.counts = [one + other for one, other in zip(whole.counts, part.counts, strict=True)]
    return whole
