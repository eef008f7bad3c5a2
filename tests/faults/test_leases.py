"""The verdict on a queue finds every way in which a message may go astray."""

from typing import Any

from faults.leases import Breach, judge_queue

Event = dict[str, Any]
POISON = "cannot be done"


def verdict_of(*events: Event, end: int = 1) -> list[Breach]:
    drained = {"op": "x-drained", "tp": "t/0", "end": end}
    found = judge_queue(
        [*events, drained], attempts_max=3, poison=lambda _, offset: POISON * (offset == 9)
    )
    return sorted(found.found)


def got(attempt: int, offset: int = 0) -> Event:
    return {"op": "x-got", "w": "q", "tp": "t/0", "o": offset, "a": attempt}


def acked(attempt: int, answer: str = "done", offset: int = 0) -> Event:
    return {"op": "x-acked", "w": "q", "tp": "t/0", "o": offset, "a": attempt, "r": answer}


def acking(attempt: int, offset: int = 0) -> Event:
    return {"op": "x-acking", "w": "q", "tp": "t/0", "o": offset, "a": attempt}


def nacked(attempt: int, offset: int = 0) -> Event:
    return {"op": "x-nacked", "w": "q", "tp": "t/0", "o": offset, "a": attempt, "r": "done"}


def dead(attempts: int = 3, why: str = POISON, offset: int = 0) -> Event:
    return {"op": "x-dead", "tp": "t/0", "o": offset, "a": attempts, "why": why}


def test_a_message_that_came_until_it_was_acked_is_right() -> None:
    assert verdict_of(got(1), got(2), acked(1, "EXPIRED"), acked(2)) == []
    assert verdict_of(got(1), acking(1), acked(1, "unknown")) == []
    # Its worker was killed.
    assert verdict_of(got(1), acking(1)) == []
    assert verdict_of(got(1), acking(1), got(2), acking(2), acked(2, "SETTLED")) == []


def test_what_comes_again_after_its_ack_is_found_whatever_the_order_of_lines() -> None:
    assert verdict_of(got(2), got(1), acked(1)) == [Breach.AGAIN]


def test_one_attempt_for_two_workers_is_found() -> None:
    assert verdict_of(got(1), got(1), acked(1)) == [Breach.TWICE]


def test_two_acks_of_one_message_are_found() -> None:
    assert verdict_of(got(1), acked(1), acked(1)) == [Breach.TWO_ACKS]


def test_a_message_that_was_never_settled_is_lost_also_if_it_was_never_delivered() -> None:
    assert verdict_of(got(1), acking(1), acked(1, "EXPIRED")) == [Breach.LOST]
    assert verdict_of(got(1), acked(1), end=2) == [Breach.LOST]


def test_a_message_that_is_reported_as_settled_but_never_was_is_found() -> None:
    assert verdict_of(got(1), acked(1, "SETTLED")) == [Breach.DENIED]


def test_poison_ends_in_the_dead_letters_after_all_attempts_with_its_reason() -> None:
    poison = [got(1, 9), nacked(1, 9), got(2, 9), got(3, 9), nacked(3, 9)]
    done = [event for offset in range(9) for event in (got(1, offset), acked(1, offset=offset))]
    assert verdict_of(*done, *poison, dead(offset=9), end=10) == []
    assert verdict_of(*done, *poison, dead(2, offset=9), end=10) == [Breach.NO_CAUSE]
    assert verdict_of(*done, *poison, dead(why="?", offset=9), end=10) == [Breach.NO_CAUSE]
    # The last worker died with it.
    assert verdict_of(*done, *poison[:-1], dead(why="?", offset=9), end=10) == []
    assert verdict_of(*done, *poison, acked(3, offset=9), end=10) == [Breach.NOT_DEAD]


def test_acked_and_dead_is_one_too_many() -> None:
    assert verdict_of(got(1), got(2), got(3), acked(3), dead()) == [Breach.BOTH]


def test_an_attempt_beyond_the_last_is_found() -> None:
    assert verdict_of(got(4), acked(4)) == [Breach.TOO_OFTEN]
