"""The watch over the event loop: what is slow is told, with where, and not too often."""

import asyncio
import logging

import pytest

from moldau.server.loop_watch import LoopWatch
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


class Clock:
    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def pass_time(self, seconds: float, calculated: float) -> None:
        self.now += seconds
        self.cpu += calculated


async def watched(clock: Clock) -> LoopWatch:
    watch = LoopWatch(asyncio.get_running_loop(), lambda: clock.now, lambda: clock.cpu)
    # It leaves no marks by itself: the test does.
    watch.stop()
    return watch


async def test_a_quick_turn_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = await watched(clock)
    for _ in range(3):
        clock.pass_time(0.14, 0.14)
        watch.mark()
    assert watch.slow_total == 0
    assert not caplog.records
    # A timer that is late by so much, each time.
    assert sum(watch.delay.counts) == 3
    assert watch.delay.sum == pytest.approx(3 * 0.09)


async def test_slow_turns_are_counted_and_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    watch = await watched(clock)
    for _ in range(12):
        clock.pass_time(1.05, 1.0)
        watch.mark()
    assert watch.slow_total == 12
    assert watch.slow_seconds_total == pytest.approx(12.0)
    assert watch.starved_seconds_total == 0.0
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "event loop blocked for 1.00 s: the broker was busy"
    assert second == f"{first} (9 more since the last warning)"


async def test_a_process_that_got_no_cpu_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = await watched(clock)
    clock.pass_time(2.05, 0.01)
    watch.mark()
    assert watch.starved_seconds_total == pytest.approx(2.0)
    assert "process stalled for 2.00 s" in caplog.text


async def test_the_place_of_a_slow_turn_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch = LoopWatch(asyncio.get_running_loop())
    watch.start()
    try:
        work_until_seen(watch)
        await until(lambda: watch.slow_total >= 1, "it is noticed")
    finally:
        watch.stop()
    assert "work_until_seen" in caplog.text


def work_until_seen(watch: LoopWatch) -> None:
    watch._location = ""  # of a machine that stood still before
    while not watch._location:
        pass
