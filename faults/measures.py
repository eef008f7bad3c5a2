"""Owns the figures of a run: how long nobody could write, and percentiles."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Some values in short."""

    count: int
    p50: float
    p99: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """Nearest-rank percentiles; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(1, ceil(len(ordered) * share)) - 1]

    return Spread(count=len(ordered), p50=rank(0.5), p99=rank(0.99), max=ordered[-1])


def unavailability(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """Seconds without any ack around each fault ("x-fault"), which are the longest after it.

    The load never rests, so the longest silence between a fault and the next one is the time in
    which nobody could write. A fault that held up nothing counts with the usual silence.
    """
    acks, faults = [], []
    for event in events:
        if event["op"] == "ack":
            acks.append(int(event["at"]))
        elif event["op"] == "x-fault":
            faults.append(int(event["at"]))
    acks.sort()
    faults.sort()
    silences = []
    for fault, following in zip(faults, [*faults[1:], None], strict=True):
        first = max(0, bisect_right(acks, fault) - 1)
        last = len(acks) if following is None else bisect_right(acks, following)
        # The ack that ended the silence may come after the next fault only if none came before.
        times = acks[first : max(last, first + 2)]
        gaps = [later - max(earlier, fault) for earlier, later in pairwise(times)]
        if gaps:
            silences.append(max(gaps) / 1e9)
    return silences
