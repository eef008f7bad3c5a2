"""The checker finds every kind of anomaly that is planted, and nothing in clean histories."""

import ast
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import seeds

from faults import checker
from faults.checker import Anomaly, HistoryError, check

Event = dict[str, Any]
PARTITIONS = ["t/0", "t/1", "t/2"]


class World:
    """A log that behaves; tests bend what the clients saw of it."""

    def __init__(self, seed: int, sends: int = 300) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.events: list[Event] = []
        self.logs: dict[str, list[str]] = {name: [] for name in PARTITIONS}
        numbers = {"p1": 0, "p2": 0}
        for _ in range(sends):
            producer, partition = rng.choice(sorted(numbers)), rng.choice(PARTITIONS)
            number = numbers[producer]
            numbers[producer] += 1
            self.events.append({"op": "send", "p": producer, "n": number, "tp": partition})
            outcome = rng.choices(["ack", "fail", "unknown"], [90, 5, 5])[0]
            written = outcome == "ack" or (outcome == "unknown" and rng.random() < 0.5)
            event: Event = {"op": outcome, "p": producer, "n": number}
            if outcome == "ack":
                event["o"] = -1 if rng.random() < 0.1 else len(self.logs[partition])
            if written:
                self.logs[partition].append(f"{producer}:{number}")
            self.events.append(event)
        self.polls("c1", restart=True)
        self.polls("c2")

    def polls(self, consumer: str, *, restart: bool = False) -> None:
        """One consumer reads everything in random steps; a rebalance may take it back."""
        for name, log in self.logs.items():
            position, again = 0, restart
            while position < len(log):
                step = self.rng.randint(1, 20)
                records = [[o, log[o]] for o in range(position, min(len(log), position + step))]
                self.events.append({"op": "poll", "c": consumer, "tp": name, "r": records})
                position += len(records)
                if again and self.rng.random() < 0.3:
                    self.events.append({"op": "assign", "c": consumer})
                    position, again = max(0, position - 30), False

    def end(self, *, start: int = 0, expires: bool = False) -> None:
        for name, log in self.logs.items():
            self.events.append(
                {"op": "end", "tp": name, "start": start, "end": len(log), "expires": expires}
            )

    def acked(self) -> list[Event]:
        """Acks with an offset below the last of their partition."""
        names = {(e["p"], e["n"]): e["tp"] for e in self.events if e["op"] == "send"}
        return [
            e
            for e in self.events
            if e["op"] == "ack" and 0 <= e["o"] < len(self.logs[names[e["p"], e["n"]]]) - 1
        ]

    def forget(self, value: str) -> None:
        """No poll sees it any more."""
        for event in self.events:
            if event["op"] == "poll":
                event["r"] = [record for record in event["r"] if record[1] != value]

    def records(self) -> list[tuple[Event, int]]:
        return [(e, i) for e in self.events if e["op"] == "poll" for i in range(len(e["r"]))]


SEEDS = seeds(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_a_log_that_behaves_is_clean(seed: int) -> None:
    world = World(seed)
    world.end()
    verdict = check(world.events)
    assert verdict.examples == {}
    assert verdict.clean
    assert verdict.sends == 300
    assert verdict.acked + verdict.failed + verdict.unknown == 300
    assert verdict.records_distinct == sum(map(len, world.logs.values()))


def lose(world: World) -> Anomaly:
    event = world.rng.choice(world.acked())
    world.forget(f"{event['p']}:{event['n']}")
    world.end()
    return Anomaly.LOST


def lose_without_final_read(world: World) -> Anomaly:
    event = world.rng.choice(world.acked())
    world.forget(f"{event['p']}:{event['n']}")
    return Anomaly.LOST


def never_poll_the_last(world: World) -> Anomaly:
    world.events += [
        {"op": "send", "p": "p9", "n": 0, "tp": "t/0"},
        {"op": "ack", "p": "p9", "n": 0, "o": len(world.logs["t/0"])},
    ]
    return Anomaly.UNSEEN


def lose_one_that_retention_cannot_have_taken(world: World) -> Anomaly:
    event = world.rng.choice(world.acked())
    world.forget(f"{event['p']}:{event['n']}")
    world.end(start=event["o"], expires=True)
    return Anomaly.LOST


def move_the_start_without_retention(world: World) -> Anomaly:
    event = world.rng.choice(world.acked())
    world.forget(f"{event['p']}:{event['n']}")
    world.end(start=event["o"] + 1)
    return Anomaly.LOST


def repeat_a_write(world: World) -> Anomaly:
    value = world.rng.choice(world.logs["t/1"])
    end = len(world.logs["t/1"])
    world.events.append({"op": "poll", "c": "c9", "tp": "t/1", "r": [[end, value]]})
    return Anomaly.DUPLICATE


def change_a_value(world: World) -> Anomaly:
    event, index = world.rng.choice(world.records())
    other = world.rng.choice([v for v in world.logs["t/0"] if v != event["r"][index][1]])
    world.events.append(
        {"op": "poll", "c": "c9", "tp": event["tp"], "r": [[event["r"][index][0], other]]}
    )
    return Anomaly.INCONSISTENT


def ack_another_offset(world: World) -> Anomaly:
    world.rng.choice(world.acked())["o"] += 1
    world.end()
    return Anomaly.INCONSISTENT


def swap_two_of_a_producer(world: World) -> Anomaly:
    log = world.logs["t/2"]
    mine = [offset for offset, value in enumerate(log) if value.startswith("p1:")]
    place = world.rng.randrange(len(mine) - 1)
    swapped = {mine[place]: log[mine[place + 1]], mine[place + 1]: log[mine[place]]}
    for event in world.events:
        if event["op"] == "poll" and event["tp"] == "t/2":
            event["r"] = [[o, swapped.get(o, v)] for o, v in event["r"]]
    return Anomaly.REORDERED


def show_a_failed_write(world: World) -> Anomaly:
    event = world.rng.choice([e for e in world.events if e["op"] == "fail"])
    (partition,) = [
        e["tp"]
        for e in world.events
        if e["op"] == "send" and (e["p"], e["n"]) == (event["p"], event["n"])
    ]
    value = f"{event['p']}:{event['n']}"
    end = len(world.logs[partition])
    world.events.append({"op": "poll", "c": "c9", "tp": partition, "r": [[end, value]]})
    return Anomaly.ABORTED_READ


def poll_backwards(world: World) -> Anomaly:
    log = world.logs["t/0"]
    first = world.rng.randrange(1, len(log))
    for offset in (first, world.rng.randrange(first + 1) if first else 0):
        world.events.append({"op": "poll", "c": "c9", "tp": "t/0", "r": [[offset, log[offset]]]})
    return Anomaly.NONMONOTONIC


def skip_in_a_poll(world: World) -> Anomaly:
    log = world.logs["t/0"]
    first = world.rng.randrange(len(log) - 2)
    records = [[o, log[o]] for o in (first, first + 2)]
    world.events.append({"op": "poll", "c": "c9", "tp": "t/0", "r": records})
    return Anomaly.SKIPPED


def read_what_nobody_sent(world: World) -> Anomaly:
    value = world.rng.choice(["p1:99999", "p7:1", "damaged 00ff"])
    end = len(world.logs["t/0"])
    world.events.append({"op": "poll", "c": "c9", "tp": "t/0", "r": [[end, value]]})
    return Anomaly.PHANTOM


def read_it_in_another_partition(world: World) -> Anomaly:
    event = next(e for e in world.events if e["op"] == "unknown" or e["op"] == "fail")
    world.forget(value := f"{event['p']}:{event['n']}")
    wrong = next(
        name
        for name in PARTITIONS
        for e in world.events
        if e["op"] == "send" and (e["p"], e["n"]) == (event["p"], event["n"]) and e["tp"] != name
    )
    end = len(world.logs[wrong])
    world.events.append({"op": "poll", "c": "c9", "tp": wrong, "r": [[end, value]]})
    return Anomaly.PHANTOM


def leave_a_gap(world: World) -> Anomaly:
    world.logs["t/1"].append("nobody read this")
    world.end()
    return Anomaly.GAP


def move_the_end_back(world: World) -> Anomaly:
    world.events += [
        {"op": "bounds", "tp": "t/0", "start": 0, "end": 9, "at": 1},
        {"op": "bounds", "tp": "t/0", "start": 0, "end": 8, "at": 2},
    ]
    return Anomaly.BACKWARDS


def move_the_start_back(world: World) -> Anomaly:
    world.events += [
        {"op": "bounds", "tp": "t/0", "start": 3, "end": 9, "at": 1},
        {"op": "bounds", "tp": "t/0", "start": 2, "end": 9, "at": 2},
    ]
    return Anomaly.BACKWARDS


PLANTED: list[Callable[[World], Anomaly]] = [
    lose,
    lose_without_final_read,
    never_poll_the_last,
    lose_one_that_retention_cannot_have_taken,
    move_the_start_without_retention,
    repeat_a_write,
    change_a_value,
    ack_another_offset,
    swap_two_of_a_producer,
    show_a_failed_write,
    poll_backwards,
    skip_in_a_poll,
    read_what_nobody_sent,
    read_it_in_another_partition,
    leave_a_gap,
    move_the_end_back,
    move_the_start_back,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_anomaly_is_found_wherever_it_is(plant: Callable[[World], Anomaly]) -> None:
    for seed in SEEDS:
        world = World(seed)
        expected = plant(world)
        verdict = check(world.events)
        assert verdict.count(expected) >= 1, f"seed={seed}"
        assert verdict.examples[expected], f"seed={seed}"


def test_an_expired_record_is_no_loss_and_a_consumer_may_be_carried_over_it() -> None:
    world = World(1)
    for event in world.events:
        if event["op"] == "poll" and event["c"] == "c1":
            event["r"] = [record for record in event["r"] if not 5 <= record[0] < 20]
    world.end(start=20, expires=True)
    assert check(world.events).clean


def test_a_record_that_expired_unread_is_counted() -> None:
    world = World(2)
    victim = next(e for e in world.acked() if e["o"] < 10)
    world.forget(f"{victim['p']}:{victim['n']}")
    world.end(start=20, expires=True)
    verdict = check(world.events)
    assert verdict.clean
    assert verdict.expired == 1


GROUP: list[Event] = [
    *({"op": "send", "p": "p", "n": n, "tp": "t/0"} for n in range(3)),
    *({"op": "ack", "p": "p", "n": n, "o": n} for n in range(3)),
    {"op": "poll", "c": "m1", "g": "g", "tp": "t/0", "r": [[0, "p:0"], [1, "p:1"]]},
    {"op": "commit", "g": "g", "tp": "t/0", "o": 1},
    {"op": "poll", "c": "m2", "g": "g", "tp": "t/0", "r": [[1, "p:1"], [2, "p:2"]]},
    {"op": "commit", "g": "g", "tp": "t/0", "o": 3},
    {"op": "group", "g": "g", "tp": "t/0", "o": 3},
]


def test_a_group_may_get_records_twice() -> None:
    assert check(GROUP).clean


def test_what_a_group_has_committed_and_never_got_is_found() -> None:
    missed = [{**event, "r": [[1, "p:1"]]} if event.get("c") == "m2" else event for event in GROUP]
    assert check(missed).count(Anomaly.SKIPPED) == 1
    # Another group got it.
    other = {**GROUP[8], "g": "other"}
    assert check([*missed, other]).count(Anomaly.SKIPPED) == 1


def test_a_commit_that_was_acked_and_is_gone_is_found() -> None:
    assert check([*GROUP[:-1], {**GROUP[-1], "o": 1}]).count(Anomaly.COMMIT) == 1


def test_what_was_read_must_not_lie_past_an_end_that_is_asked_for_later() -> None:
    events = [
        *GROUP[:6],
        {"op": "poll", "c": "c", "tp": "t/0", "r": [[0, "p:0"], [1, "p:1"]], "at": 5},
        {"op": "bounds", "tp": "t/0", "start": 0, "end": 2, "asked": 6, "at": 9},
        {"op": "poll", "c": "c", "tp": "t/0", "r": [[2, "p:2"]], "at": 8},
        {"op": "bounds", "tp": "t/0", "start": 0, "end": 3, "asked": 10, "at": 11},
    ]
    # The third record was read while the first bounds were asked for: it may be newer.
    assert check(events).clean
    events[-1] = {**events[-1], "end": 2}
    assert check(events).count(Anomaly.UNCOMMITTED) == 1


def test_a_line_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(GROUP[0]) + "\n" + json.dumps(GROUP[1])[:20])
    assert list(checker.read_history([path])) == [GROUP[0]]


def test_a_rebalance_may_take_a_consumer_back() -> None:
    events: list[dict[str, Any]] = [
        {"op": "send", "p": "p", "n": 0, "tp": "t/0"},
        {"op": "ack", "p": "p", "n": 0, "o": 0},
        {"op": "poll", "c": "c", "tp": "t/0", "r": [[0, "p:0"]]},
        {"op": "assign", "c": "c"},
        {"op": "poll", "c": "c", "tp": "t/0", "r": [[0, "p:0"]]},
    ]
    assert check(events).clean
    del events[3]
    assert check(events).count(Anomaly.NONMONOTONIC) == 1


def transaction(outcome: str, seen: int) -> list[Event]:
    events: list[Event] = []
    for number in range(3):
        events.append({"op": "send", "p": "p", "n": number, "tp": f"t/{number}", "t": "x"})
        events.append({"op": "ack", "p": "p", "n": number, "o": 0})
    events.append({"op": "txn", "t": "x", "outcome": outcome})
    for number in range(seen):
        events.append({"op": "poll", "c": "c", "tp": f"t/{number}", "r": [[0, f"p:{number}"]]})
    return events


@pytest.mark.parametrize(
    ("outcome", "seen", "expected"),
    [
        ("commit", 3, set()),
        ("commit", 2, {Anomaly.TORN, Anomaly.UNSEEN}),
        ("commit", 0, {Anomaly.UNSEEN}),
        ("abort", 0, set()),
        ("abort", 1, {Anomaly.ABORTED_READ}),
        ("unknown", 0, set()),
        ("unknown", 3, set()),
        ("unknown", 2, {Anomaly.TORN}),
    ],
)
def test_a_transaction_is_seen_whole_or_not_at_all(
    outcome: str, seen: int, expected: set[Anomaly]
) -> None:
    assert set(check(transaction(outcome, seen)).found) == expected


def test_control_records_may_leave_gaps_where_there_are_transactions() -> None:
    events = transaction("commit", 3)
    events.append({"op": "end", "tp": "t/0", "start": 0, "end": 2})
    assert check(events).clean


@pytest.mark.parametrize(
    "event",
    [
        {"op": "sned"},
        {"op": "ack", "p": "p", "n": 0, "o": 1},
        {"op": "send", "p": "p", "n": 5, "tp": "t/0"},
        {"op": "poll", "c": "c", "tp": "t/0"},
        {"op": "txn", "t": "x", "outcome": "perhaps"},
        {},
    ],
)
def test_a_history_that_cannot_be_is_no_verdict(event: Event) -> None:
    with pytest.raises(HistoryError):
        check([event])


def test_a_send_has_one_outcome() -> None:
    events = [
        {"op": "send", "p": "p", "n": 0, "tp": "t/0"},
        {"op": "ack", "p": "p", "n": 0, "o": 0},
        {"op": "fail", "p": "p", "n": 0},
    ]
    with pytest.raises(HistoryError):
        check(events)


def test_examples_are_bounded_and_counts_are_not() -> None:
    events = [{"op": "poll", "c": "c", "tp": "t/0", "r": [[o, f"x:{o}"] for o in range(500)]}]
    verdict = check(events)
    assert verdict.count(Anomaly.PHANTOM) == 500
    assert len(verdict.examples[Anomaly.PHANTOM]) == checker.EXAMPLES_MAX


def test_the_time_grows_with_the_history_and_not_faster() -> None:
    def seconds(sends: int) -> float:
        world = World(3, sends)
        world.end()
        started = time.process_time()
        assert check(world.events).clean
        return time.process_time() - started

    def least(sends: int) -> float:
        """Of some: what else the machine does only adds to it."""
        return min(seconds(sends) for _ in range(3))

    assert least(12_000) < 40 * least(1_200)


def test_the_program_judges_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(4)
    world.end()
    files = [tmp_path / "clients.jsonl", tmp_path / "readers.jsonl"]
    for path, wanted in zip(files, (False, True), strict=True):
        chosen = [e for e in world.events if (e["op"] in ("poll", "assign", "end")) is wanted]
        path.write_text("".join(json.dumps(event) + "\n" for event in chosen))
    assert checker.main([str(path) for path in files]) == 0
    assert json.loads(capsys.readouterr().out)["sends"] == 300
    with files[1].open("a") as file:
        file.write('{"op":"poll","c":"c9","tp":"t/0","r":[[0,"p1:77777"]]}\n')
    assert checker.main([str(path) for path in files]) == 1
    assert Anomaly.INCONSISTENT in json.loads(capsys.readouterr().out)["found"]
    files[0].write_text("{\n")
    assert checker.main([str(path) for path in files]) == 2


def test_the_checker_imports_nothing_but_the_standard_library() -> None:
    for path in (Path(checker.__file__), Path(checker.__file__).parent / "__init__.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names
