"""A loop takes as many messages at a time as it does within a part of their lease."""

import pytest

from moldau.client.queue import batch_size


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(batch_size, "time", made)
    return made


def counts(clock: Clock, seconds_each: list[float], visibility: float) -> list[int]:
    """How many are taken when messages take so long, batch by batch."""
    own, found = batch_size.BatchSizer(), []
    for seconds in seconds_each:
        found.append(own.count)
        own.taken(own.count)
        clock.now += seconds * own.count
        own.done(visibility)
    return [*found, own.count]


def test_a_fast_loop_takes_more_and_more(clock: Clock) -> None:
    assert counts(clock, [0.001] * 4, 30) == [1, 4, 16, 64, 100]


def test_a_slow_loop_takes_what_it_can_do(clock: Clock) -> None:
    assert counts(clock, [1.0] * 4, 30) == [1, 4, 7, 7, 7]
    assert counts(clock, [60.0] * 2, 30) == [1, 1, 1]


def test_a_loop_that_becomes_slow_takes_less(clock: Clock) -> None:
    assert counts(clock, [0.001, 0.001, 5.0, 5.0], 30) == [1, 4, 16, 1, 1]


def test_without_leases_there_is_no_hurry(clock: Clock) -> None:
    assert counts(clock, [60.0], 0) == [1, 100]


def test_an_empty_batch_teaches_nothing(clock: Clock) -> None:
    own = batch_size.BatchSizer()
    own.taken(0)
    own.done(30)
    assert own.count == 1
