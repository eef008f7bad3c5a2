"""The event loop of a simulated process: asyncio in virtual time."""

import asyncio
import random

from sim.loop import SimLoop
from sim.scheduler import START, Scheduler


def make() -> tuple[Scheduler, SimLoop]:
    scheduler = Scheduler()
    return scheduler, SimLoop(scheduler, random.Random(1), "a")


def run(scheduler: Scheduler, seconds: float) -> None:
    end = scheduler.now + seconds
    while (at := scheduler.next_at) is not None and at <= end:
        scheduler.step()


def test_sleeping_takes_virtual_time_alone() -> None:
    scheduler, loop = make()
    woke: list[float] = []

    async def sleeper() -> None:
        await asyncio.sleep(3600)
        woke.append(scheduler.now - START)

    loop.begin(sleeper())
    run(scheduler, 3599)
    assert woke == []
    run(scheduler, 3601)
    assert [round(at, 3) for at in woke] == [3600]


def test_timers_and_timeouts_come_in_their_order() -> None:
    scheduler, loop = make()
    seen: list[str] = []

    async def timed() -> None:
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(1)
        except TimeoutError:
            seen.append("timeout")

    loop.begin(timed())
    loop.call_later(0.4, seen.append, "early")
    loop.call_later(0.6, seen.append, "late")
    loop.call_later(0.55, seen.append, "never").cancel()
    run(scheduler, 2)
    assert seen == ["early", "timeout", "late"]


def test_work_of_one_executor_keeps_its_order() -> None:
    from concurrent.futures import ThreadPoolExecutor

    scheduler, loop = make()
    delays = iter((0.3, 0.1, 0.2))
    loop.work_delay = lambda: next(delays)
    seen: list[int] = []

    async def work() -> None:
        pool = ThreadPoolExecutor(1)
        await asyncio.gather(*(loop.run_in_executor(pool, seen.append, n) for n in range(3)))
        seen.append(99)

    loop.begin(work())
    run(scheduler, 1)
    assert seen == [0, 1, 2, 99]


def test_nothing_of_a_process_runs_after_its_end() -> None:
    scheduler, loop = make()
    seen: list[str] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("slept")
        finally:
            loop.call_soon(seen.append, "called")

    loop.begin(careful())
    loop.call_later(0.5, seen.append, "timer")
    loop.run_as_thread(0.5, lambda: seen.append("thread"))
    run(scheduler, 0.1)
    loop.die()
    run(scheduler, 5)
    assert seen == []


def test_a_process_that_stands_still_catches_up_later() -> None:
    scheduler, loop = make()
    seen: list[float] = []
    loop.call_later(1.0, lambda: seen.append(round(scheduler.now - START, 3)))
    loop.paused_until = START + 4.0
    run(scheduler, 10)
    assert seen == [4.0]
