"""The verdict on the queues of a simulated world, from what its clients saw.

faults/leases.py and faults/ordered.py say what a group must never do. Here are more, since all
clients have one clock: what is done is never given to who asks later, what was sent is what is
got, and nothing comes before its time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from faults.leases import judge_queue
from faults.ordered import judge_ordered
from sim.clients.queue_worker import ATTEMPTS_MAX, VISIBILITY_MS, Board, poison

_LATE: Final = 30
"""So many acks, and more than were taken, are not called late while their leases last: some are,
of members that were not heard of for a while."""
_AHEAD: Final = 2_100_000
"""Microseconds: so far the clock of a broker may be ahead within a turn that waits for its disk."""
Event = Mapping[str, Any]


def judge(events: Iterable[Event], board: Board, elected: Sequence[int] = ()) -> list[str]:
    """What is wrong. `elected`: when somebody began to lead something."""
    history = list(events)
    found: list[str] = []
    queue = judge_queue(history, attempts_max=ATTEMPTS_MAX, poison=poison)
    for breach, count in queue.found.items():
        found.append(f"queue: {breach} ×{count}: {'; '.join(queue.examples[breach][:3])}")
    ordered = judge_ordered(history)
    found += [f"ordered group: {text}" for text in ordered.examples]
    found += _again(history)
    found += _called_settled(history, elected)
    found += _contents(history, board)
    found += _ends(history)
    found += _early(history)
    return found


def _again(history: list[Event]) -> Iterator[str]:
    """What was done or called settled came to a poll that was sent later."""
    done: dict[tuple[str, int], Event] = {}
    for event in history:
        if event["op"] == "x-acked" and event["r"] in ("done", "SETTLED"):
            done.setdefault((event["tp"], event["o"]), event)
        elif event["op"] == "x-got":
            before = done.get((event["tp"], event["o"]))
            if before is not None and event["since"] > before["at"]:
                yield f"queue: given after its ack was answered: {event}, {before}"


def _early(history: list[Event]) -> Iterator[str]:
    """Acks were called late all the time, before their leases could have ended."""
    leased: dict[tuple[str, str, int, int], int] = {}
    done, early = 0, []
    for event in history:
        if event["op"] == "x-got":
            leased[event["w"], event["tp"], event["o"], event["a"]] = event["since"]
        elif event["op"] == "x-acked":
            since = leased[event["w"], event["tp"], event["o"], event["a"]]
            done += event["r"] == "done"
            if event["r"] == "EXPIRED" and event["at"] < since + VISIBILITY_MS * 1000:
                early.append(event)
    if len(early) > max(_LATE, done):
        yield f"queue: leases ended too early: {len(early)}, e.g. {early[0]}"


def _called_settled(history: list[Event], elected: Sequence[int]) -> Iterator[str]:
    """A worker that came too late took a dead letter for done. New leaders have forgotten."""
    dead = {(event["tp"], event["o"]) for event in history if event["op"] == "x-dead"}
    got: dict[tuple[str, str, int], int] = {}
    for event in history:
        if event["op"] == "x-got":
            got[event["w"], event["tp"], event["o"]] = event["at"]
        elif event["op"] in ("x-acked", "x-nacked") and event["r"] == "SETTLED":
            since = got.get((event["w"], event["tp"], event["o"]), 0)
            is_known = not any(since <= at <= event["at"] for at in elected)
            if is_known and (event["tp"], event["o"]) in dead:
                yield f"queue: a dead letter was called settled: {event}"


def _contents(history: list[Event], board: Board) -> Iterator[str]:
    """Each place has one value, of somebody who sent it, and each value one place."""
    values: dict[tuple[str, int], str] = {}
    places: dict[str, tuple[str, int]] = {}
    for event in history:
        if event["op"] not in ("x-sent", "x-got", "x-ordered-got", "x-dead"):
            continue
        place, value = (event["tp"], event["o"]), event["v"]
        if values.setdefault(place, value) != value:
            yield f"queue: {values[place]} is at {place}, but {event}"
        if places.setdefault(value, place) != place:
            yield f"queue: {value} is at {places[value]}, but {event}"
        if value not in board.sent:
            yield f"queue: {value} was never sent: {event}"
        elif event["op"] == "x-got" and event["at"] < board.later.get(value, 0) - _AHEAD:
            yield f"queue: it was for {board.later[value]}, but came early: {event}"


def _ends(history: list[Event]) -> Iterator[str]:
    """No acknowledged message lies behind the end of its partition."""
    ends: dict[tuple[str, str], int] = {}
    for event in history:
        if event["op"] in ("x-drained", "x-ordered-drained"):
            ends[event["op"], event["tp"]] = event["end"]
    for event in history:
        if event["op"] == "x-sent":
            for (op, place), end in ends.items():
                if place == event["tp"] and event["o"] >= end:
                    yield f"{op}: ends at {end}, but {event}"
