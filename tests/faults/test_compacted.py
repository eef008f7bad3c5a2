"""The checker knows what compaction may take, and finds what it must not."""

from typing import Any

import pytest

from faults.checker import Anomaly, check

Event = dict[str, Any]
PLACE = "t/0"
SENT: list[tuple[str, bool]] = [
    ("a", False),
    ("b", False),
    ("a", False),
    ("b", True),
    ("c", False),
    ("a", False),
]
"""Key, and whether it is removed, by offset."""


def history(*kept: int, outcomes: dict[int, str] | None = None, tail: bool = False) -> list[Event]:
    """All that was sent is acked at its offset; a reader finds only what was kept."""
    events: list[Event] = []
    for number, (key, is_removal) in enumerate(SENT):
        event: Event = {"op": "send", "p": "p1", "n": number, "tp": PLACE, "k": key, "at": number}
        if is_removal:
            event["z"] = True
        outcome = (outcomes or {}).get(number, "ack")
        events.append(event)
        events.append({"op": outcome, "p": "p1", "n": number, "o": number, "at": number})
    if tail:
        events.append({"op": "poll", "c": "c1", "tp": PLACE, "r": records(*range(len(SENT)))})
    events.append({"op": "poll", "c": "r1", "tp": PLACE, "r": records(*kept)})
    end = {"op": "end", "c": "r1", "tp": PLACE, "start": 0, "end": len(SENT), "at": 99}
    return [*events, end]


def records(*offsets: int) -> list[list[Any]]:
    return [[offset, f"p1:{offset}"] for offset in offsets]


@pytest.mark.parametrize("kept", [(3, 4, 5), (4, 5), (0, 1, 2, 3, 4, 5), (0, 3, 4, 5)])
@pytest.mark.parametrize("tail", [False, True])
def test_what_a_later_record_of_its_key_replaces_may_be_gone(
    kept: tuple[int, ...], tail: bool
) -> None:
    verdict = check(history(*kept, tail=tail))
    assert verdict.clean, verdict.examples
    assert verdict.acked == len(SENT)


@pytest.mark.parametrize("tail", [False, True])
def test_the_last_value_of_a_key_is_missed_in_every_read_to_the_end(tail: bool) -> None:
    verdict = check(history(3, 5, tail=tail))
    assert verdict.count(Anomaly.LOST) > 0


def test_an_earlier_value_in_place_of_the_last_is_stale() -> None:
    verdict = check(history(2, 3, 4, tail=True))
    assert verdict.count(Anomaly.STALE) == 1


def test_a_value_that_was_removed_is_not_there_again() -> None:
    verdict = check(history(1, 4, 5, tail=True))
    assert verdict.count(Anomaly.STALE) == 1


def test_a_later_record_of_unknown_outcome_replaces_an_acked_one() -> None:
    assert check(history(3, 4, 5, outcomes={5: "unknown"})).clean
    assert check(history(2, 3, 4, outcomes={5: "unknown"})).clean


def test_what_is_acked_after_a_read_began_need_not_be_in_it() -> None:
    events = history(2, 3, 4)
    events[-1]["asked"] = 4
    found = check(events)
    assert found.count(Anomaly.STALE) == 0


def test_a_record_never_changes_its_offset() -> None:
    events = history(3, 4, 5)
    events.append({"op": "poll", "c": "r2", "tp": PLACE, "r": [[2, "p1:5"]]})
    assert check(events).count(Anomaly.DUPLICATE) == 1
    events = history(3, 5)
    events.append({"op": "poll", "c": "r2", "tp": PLACE, "r": [[6, "p1:4"]]})
    assert check(events).count(Anomaly.INCONSISTENT) == 1


def test_a_reader_may_step_over_what_was_compacted_and_over_nothing_else() -> None:
    assert check(history(0, 3, 4, 5, tail=True)).count(Anomaly.SKIPPED) == 0
    assert check(history(0, 3, 5, tail=True)).count(Anomaly.SKIPPED) == 1
