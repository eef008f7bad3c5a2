"""Checks the ends of partitions that clients get: all before them is committed.

So what is sent after an end was returned goes behind it. All clients have one clock, so that can be
said. The other way round it cannot: a deposed leader may return an end that is too low.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

Event = Mapping[str, Any]


def find_wrong_ends(events: Iterable[Event]) -> Iterator[str]:
    """What is wrong."""
    sends: dict[tuple[str, int], tuple[str, int]] = {}
    writes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    bounds: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["op"] == "send":
            sends[event["p"], event["n"]] = (event["tp"], event["at"])
        elif event["op"] == "ack" and event["o"] >= 0:
            place, sent = sends[event["p"], event["n"]]
            writes[place].append((sent, event["o"]))
        elif event["op"] in ("bounds", "end"):
            bounds[event["tp"]].append((event["at"], event["end"]))
    for place, reported in bounds.items():
        reported.sort()
        times = [at for at, _ in reported]
        highest = list(accumulate((end for _, end in reported), max))
        for sent, offset in writes[place]:
            before = bisect_left(times, sent)
            if before and offset < highest[before - 1]:
                yield f"{place} ended at {highest[before - 1]}, and {offset} was sent after that"
