"""The verdict on a queue group: what its workers got and settled, and what it must never do.

A history is that of the workers, one line an event:

    {"op": "x-got", "w": "q1", "tp": "faults/2", "o": 17, "a": 1}         attempt 1 came to q1
    {"op": "x-acking", "w": "q1", "tp": "faults/2", "o": 17, "a": 1}      q1 is about to ack
    {"op": "x-acked", "w": "q1", "tp": "faults/2", "o": 17, "a": 1, "r": "done"}
    {"op": "x-nacked", ...}                                               the same
    {"op": "x-dead", "tp": "faults/2", "o": 19, "a": 4, "why": "poison"}  read from the dead letters
    {"op": "x-drained", "tp": "faults/2", "end": 40}                      nothing is open below

`r` is "done", "unknown" if no answer came, or the name of a refusal. A worker that is killed while
it acks leaves only the intention: then nobody knows. Attempts are counted by the
queue and none comes twice, so no clocks are compared: after an ack of attempt n that was answered
with "done", a worker that gets attempt n + 1 got an acknowledged message again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

EXAMPLES_MAX = 5
Place = tuple[str, int]


class Breach(StrEnum):
    """What can be wrong with a queue."""

    AGAIN = "delivered after its ack"
    TWICE = "one attempt came to two workers"
    TWO_ACKS = "acknowledged twice"
    LOST = "neither acknowledged nor a dead letter"
    BOTH = "acknowledged, and a dead letter"
    NO_CAUSE = "a dead letter that is none"
    NOT_DEAD = "poison that is not a dead letter"
    TOO_OFTEN = "more attempts than there are"
    DENIED = "reported as settled, but never settled"


@dataclass(slots=True)
class QueueVerdict:
    """What a history shows."""

    messages: int = 0
    deliveries: int = 0
    acked: int = 0
    dead: int = 0
    stale: int = 0
    """Acks and nacks that were refused because they came too late."""
    found: Counter[Breach] = field(default_factory=Counter)
    examples: dict[Breach, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, breach: Breach, place: Place, text: str) -> None:
        self.found[breach] += 1
        if len(self.examples[breach]) < EXAMPLES_MAX:
            self.examples[breach].append(f"{place[0]}@{place[1]}: {text}")


@dataclass(slots=True)
class _Message:
    attempts: Counter[int] = field(default_factory=Counter)
    done: list[int] = field(default_factory=list)
    """Attempts whose ack was answered."""
    nacked: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    """Attempts whose ack got no answer, so nobody knows."""
    was_settled: bool = False
    dead: list[tuple[int, str]] = field(default_factory=list)


LATE = frozenset({"EXPIRED", "NOT_HOLDER", "LEADER_CHANGED", "UNKNOWN_CONSUMER"})


def judge_queue(
    events: Iterable[Mapping[str, Any]],
    *,
    attempts_max: int,
    poison: Callable[[str, int], str],
) -> QueueVerdict:
    """`poison` names why a message cannot be worked on; empty if it can."""
    verdict = QueueVerdict()
    messages: dict[Place, _Message] = defaultdict(_Message)
    ends: dict[str, int] = {}
    for event in events:
        match event["op"]:
            case "x-drained":
                ends[event["tp"]] = max(ends.get(event["tp"], 0), event["end"])
                continue
            case "x-got" | "x-acking" | "x-acked" | "x-nacked" | "x-dead":
                message = messages[event["tp"], event["o"]]
            case _:
                continue
        _note(verdict, message, event)
    for topic, end in ends.items():
        for offset in range(end):
            messages[topic, offset]
    verdict.messages = len(messages)
    for place, message in messages.items():
        _judge(verdict, place, message, attempts_max, poison(*place))
    return verdict


def _note(verdict: QueueVerdict, message: _Message, event: Mapping[str, Any]) -> None:
    operation, attempt = event["op"], event["a"]
    if operation == "x-got":
        verdict.deliveries += 1
        message.attempts[attempt] += 1
    elif operation == "x-dead":
        message.dead.append((attempt, event["why"]))
    elif operation == "x-acking":
        message.open.add(attempt)
    else:
        answer = event["r"]
        verdict.stale += answer in LATE
        if operation == "x-acked" and answer == "done":
            message.done.append(attempt)
        elif operation == "x-nacked" and answer == "done":
            message.nacked.add(attempt)
        if operation == "x-acked" and answer != "unknown":
            message.open.discard(attempt)
        message.was_settled |= answer == "SETTLED"


def _judge(
    verdict: QueueVerdict, place: Place, message: _Message, attempts_max: int, poison: str
) -> None:
    done = message.done
    verdict.acked += bool(done)
    verdict.dead += bool(message.dead)
    last = max(message.attempts, default=0)
    if done and last > min(done):
        verdict.add(Breach.AGAIN, place, f"acked as attempt {min(done)}, came as attempt {last}")
    for attempt, count in message.attempts.items():
        if count > 1:
            verdict.add(Breach.TWICE, place, f"attempt {attempt} came {count} times")
    if len(done) > 1:
        verdict.add(Breach.TWO_ACKS, place, f"attempts {done}")
    if last > attempts_max:
        verdict.add(Breach.TOO_OFTEN, place, f"attempt {last} of {attempts_max}")
    if done and message.dead:
        verdict.add(Breach.BOTH, place, f"attempt {done[0]} was acked")
    if not done and not message.dead:
        if message.was_settled and not message.open:
            verdict.add(Breach.DENIED, place, "an ack was answered with settled")
        elif not message.open:
            verdict.add(Breach.LOST, place, f"delivered {sum(message.attempts.values())} times")
    for attempts, why in message.dead:
        # The last attempt may have died with its worker; then it is dead for that.
        if attempts != attempts_max or (attempts in message.nacked and why != poison):
            verdict.add(Breach.NO_CAUSE, place, f"{attempts} attempts, {why!r}")
    if poison and not message.dead and (done or message.open):
        verdict.add(Breach.NOT_DEAD, place, "it was acked")
