"""A verdict on those who read committed: nothing of a transaction is theirs before its end.

What is aborted in the end shows by itself. What is committed in the end must not be read, nor lie
below the end that they get, before its producer has asked for the commit. All clients have one
clock, so that can be said.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Event = Mapping[str, Any]


class _Open(NamedTuple):
    """A record of a transaction that was committed, while that was surely not decided yet."""

    value: str
    offset: int
    acked: int
    ending: int


def find_unstable(events: Iterable[Event]) -> Iterator[str]:
    """What is wrong. `x-ending` stands before an end is asked for."""
    history = list(events)
    known = _find_open(history)
    values = {each.value: each for some in known.values() for each in some}
    for event in history:
        if event["op"] == "poll":
            for _, value in event["r"]:
                found = values.get(value)
                if found is not None and event["at"] < found.ending:
                    yield f"{value} was read before it was to be committed: {event['c']}"
        elif event["op"] in ("bounds", "end"):
            for each in known.get(event["tp"], ()):
                is_open = each.acked <= event["asked"] and event["at"] < each.ending
                if is_open and event["end"] > each.offset:
                    yield f"{event['tp']} ended at {event['end']} while {each} was open"


def _find_open(history: list[Event]) -> dict[str, list[_Open]]:
    places: dict[tuple[str, int], tuple[str, str]] = {}
    endings: dict[str, int] = {}
    committed: set[str] = set()
    for event in history:
        if event["op"] == "send":
            places[event["p"], event["n"]] = (event["tp"], event["t"])
        elif event["op"] == "x-ending":
            endings[event["t"]] = event["at"]
        elif event["op"] == "txn" and event["outcome"] == "commit":
            committed.add(event["t"])
    found: dict[str, list[_Open]] = defaultdict(list)
    for event in history:
        if event["op"] == "ack" and event["o"] >= 0:
            place, transaction = places[event["p"], event["n"]]
            if transaction in committed and transaction in endings:
                value = f"{event['p']}:{event['n']}"
                ending = endings[transaction]
                found[place].append(_Open(value, event["o"], event["at"], ending))
    return found
