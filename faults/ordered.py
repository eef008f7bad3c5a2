"""The verdict on an ordered group: what its workers got and acked, and what it must never do.

A history is that of the workers, one line an event, with times of the clock that they share:

    {"op": "x-ordered-got", "at": 7, "w": "o1", "tp": "faults/2", "o": 17, "since": 3}
    {"op": "x-ordered-acked", "at": 9, "w": "o1", "tp": "faults/2", "o": 17, "r": "done"}

`since` is when the poll was sent. An ack is about everything before it in its partition: one that
polls after it was answered gets none of that again, from whichever leader.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

EXAMPLES_MAX = 5
AGAIN = "delivered to a poll that was sent after its ack was answered"
SKIPPED = "acknowledged with what came after it, but never delivered"


@dataclass(slots=True)
class OrderedVerdict:
    """What a history shows."""

    deliveries: int = 0
    acked: int = 0
    """Messages that are done."""
    found: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, breach: str, text: str) -> None:
        self.found[breach] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{breach}: {text}")


def judge_ordered(events: Iterable[Mapping[str, Any]]) -> OrderedVerdict:
    """`events` in any order."""
    verdict = OrderedVerdict()
    gots: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    acks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["op"] == "x-ordered-got":
            verdict.deliveries += 1
            gots[event["tp"]].append((event["since"], event["o"], event["w"]))
        elif event["op"] == "x-ordered-acked" and event["r"] == "done":
            acks[event["tp"]].append((event["at"], event["o"]))
    for place, done in acks.items():
        done.sort()
        times = [at for at, _ in done]
        highest = list(accumulate((offset for _, offset in done), max))
        verdict.acked += highest[-1] + 1
        for since, offset, worker in gots[place]:
            before = bisect_left(times, since)
            if before and offset <= highest[before - 1]:
                verdict.add(AGAIN, f"{place}@{offset} to {worker}, {highest[before - 1]} is acked")
        for offset in sorted({*range(highest[-1] + 1)} - {offset for _, offset, _ in gots[place]}):
            verdict.add(SKIPPED, f"{place}@{offset}, {highest[-1]} is acked")
    return verdict
