"""The verdict on an ordered group finds what came again, and what was passed over."""

from typing import Any

from faults.ordered import AGAIN, SKIPPED, judge_ordered


def got(offset: int, since: int) -> dict[str, Any]:
    return {
        "op": "x-ordered-got",
        "at": since + 1,
        "w": "o",
        "tp": "t/0",
        "o": offset,
        "since": since,
    }


def acked(offset: int, at: int, answer: str = "done") -> dict[str, Any]:
    return {"op": "x-ordered-acked", "at": at, "w": "o", "tp": "t/0", "o": offset, "r": answer}


def found(*events: dict[str, Any]) -> dict[str, int]:
    return dict(judge_ordered(events).found)


def test_polls_may_repeat_until_the_ack_is_answered() -> None:
    events = [got(0, 1), got(1, 1), got(0, 3), acked(0, 5), got(0, 4), got(1, 6), acked(1, 8)]
    assert found(*events) == {}
    assert judge_ordered(events).acked == 2


def test_what_comes_to_a_later_poll_came_again() -> None:
    assert found(got(0, 1), got(1, 1), acked(1, 3), got(0, 4)) == {AGAIN: 1}
    assert found(got(0, 1), acked(0, 3, "NOT_ASSIGNED"), got(0, 4)) == {}


def test_an_earlier_ack_that_comes_late_takes_nothing_back() -> None:
    assert found(got(0, 1), got(1, 1), acked(1, 3), acked(0, 5), got(1, 6)) == {AGAIN: 1}


def test_what_was_never_delivered_was_skipped() -> None:
    assert found(got(0, 1), got(2, 1), acked(2, 3)) == {SKIPPED: 1}
