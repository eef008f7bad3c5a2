"""Owns lists of offsets as ranges, of which a report names the first few."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Range(NamedTuple):
    """Offsets from `first` to `last`, of which there are `rows`; others between may be holes."""

    first: int
    last: int
    rows: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def ranges_of(offsets: Any, neighbours: Any = None) -> list[Range]:
    """Sorted offsets as ranges.

    Two share a range if nothing of `neighbours` lies between them: so a transaction's marker, an
    offset that nobody reads, does not cut what is missing into pieces.
    """
    if not len(offsets):
        return []
    if neighbours is None:
        places = offsets
    else:
        places = np.searchsorted(neighbours, offsets)
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    begins = np.concatenate(([0], cuts))
    ends = np.concatenate((cuts, [len(offsets)]))
    return [
        Range(int(offsets[begin]), int(offsets[end - 1]), int(end - begin))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """In order; those that touch become one."""
    result: list[Range] = []
    for found in sorted(ranges):
        if result and found.first == result[-1].last + 1:
            last = result.pop()
            found = Range(last.first, found.last, last.rows + found.rows)
        result.append(found)
    return result


def shown(ranges: Sequence[Range], most: int) -> str:
    """`5-9, 12, … and 3 more ranges`."""
    text = ", ".join(map(str, ranges[:most]))
    left = len(ranges) - most
    return text if left <= 0 else f"{text} and {left} more"
