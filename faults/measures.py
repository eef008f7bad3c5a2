"""The figures of a run: how long nobody could write, and percentiles."""

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
    """Seconds without an ack after each fault ("x-fault"), the longest of each partition.

    The load never rests, so the longest silence between a fault and the next one is the time in
    which nobody could write to that partition. A fault that held up nothing counts with the usual
    silence. A fault may name the partitions that it concerns ("tps"), and end ("x-healed") before
    the next one begins.
    """
    acks: dict[str, list[int]] = {}
    faults: list[tuple[int, list[str] | None]] = []
    healed: list[int] = []
    for event in events:
        if event["op"] == "ack":
            acks.setdefault(event.get("tp", ""), []).append(int(event["at"]))
        elif event["op"] == "x-fault":
            faults.append((int(event["at"]), event.get("tps")))
        elif event["op"] == "x-healed":
            healed.append(int(event["at"]))
    for times in acks.values():
        times.sort()
    faults.sort(key=lambda fault: fault[0])
    ends = sorted([*healed, *(at for at, _ in faults)])
    silences = []
    for at, partitions in faults:
        following = ends[bisect_right(ends, at) :][:1]
        for name in sorted(acks) if partitions is None else partitions:
            silence = _silence(acks.get(name, []), at, following[0] if following else None)
            if silence is not None:
                silences.append(silence)
    return silences


def _silence(acks: Sequence[int], fault: int, following: int | None) -> float | None:
    """The longest time without an ack from the fault on; None if none came after it."""
    first = max(0, bisect_right(acks, fault) - 1)
    last = len(acks) if following is None else bisect_right(acks, following)
    # The ack that ended the silence may come after the next fault only if none came before.
    times = acks[first : max(last, first + 2)]
    gaps = [later - max(earlier, fault) for earlier, later in pairwise(times)]
    return max(gaps) / 1e9 if gaps else None
