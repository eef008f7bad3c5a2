"""The time of queues: it follows the wall clock, and never goes back."""

from moldau.model.ids import TimestampMs
from moldau.queues.monotonic_wall_clock import MonotonicWallClock
from moldau.testing.replicas import ManualClock


def test_it_is_the_wall_clocks_as_long_as_that_goes_on() -> None:
    clock = ManualClock(1_000)
    time = MonotonicWallClock(clock)
    for wall in (1_000, 1_001, 5_000):
        clock.steady += (wall - clock.wall) / 1000
        clock.wall = TimestampMs(wall)
        assert time.now() == wall
    # Also ahead, when somebody sets it.
    clock.wall = TimestampMs(90_000)
    assert time.now() == 90_000


def test_a_clock_that_is_set_back_slows_it_down_until_the_clock_has_caught_up() -> None:
    clock = ManualClock(10_000)
    time = MonotonicWallClock(clock)
    clock.wall = TimestampMs(9_000)
    told = [time.now()]
    for _ in range(30):
        clock.wall = TimestampMs(clock.wall + 100)
        clock.steady += 0.1
        told.append(time.now())
    assert told == sorted(told)
    assert told[0] == 10_000
    assert told[10] == 10_500
    assert told[-1] == clock.wall == 12_000
