"""Replies that wait are told when they are late, and only then."""

import asyncio
from typing import cast

from harness.virtual_loop import run_virtually
from moldau.edge.kafka.deadlines import TICK_MS, Deadlines
from moldau.model.errors import ErrorCode
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply


def reply() -> DeferredReply:
    return DeferredReply(cast("Connection", None), 0)


def test_only_a_request_that_waits_too_long_times_out_and_only_once() -> None:
    async def run() -> tuple[list[ErrorCode], list[ErrorCode], int]:
        deadlines = Deadlines()
        late: list[ErrorCode] = []
        waiting: list[ErrorCode] = []
        deadlines.add(reply(), 0, late.append)
        deadlines.add(reply(), 60_000, waiting.append)
        for _ in range(200):
            if late and deadlines.tick > 4:
                break
            await asyncio.sleep(TICK_MS / 2000)
        left = len(deadlines._waiting)
        deadlines.stop()
        return late, waiting, left

    late, waiting, left = run_virtually(run())
    assert late == [ErrorCode.REQUEST_TIMED_OUT]
    assert waiting == []
    assert left == 1


def test_no_request_times_out_before_its_deadline() -> None:
    async def run() -> float:
        deadlines = Deadlines()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ErrorCode] = loop.create_future()
        before = loop.time()
        deadlines.add(reply(), 250, done.set_result)
        await done
        return loop.time() - before

    # A bound from below: a slow machine only makes it longer.
    assert run_virtually(run()) >= 0.25


def test_who_was_answered_is_forgotten_and_the_timer_ends() -> None:
    async def run() -> tuple[int, bool]:
        deadlines = Deadlines()
        told: list[ErrorCode] = []
        answered = reply()
        deadlines.add(answered, 0, told.append)
        deadlines.remove(answered)
        deadlines.remove(answered)
        for _ in range(200):
            if deadlines.tick:
                break
            await asyncio.sleep(TICK_MS / 2000)
        return len(told), deadlines._timer is not None

    assert run_virtually(run()) == (0, False)


def test_one_that_answers_others_while_it_is_late_does_not_tell_them_twice() -> None:
    async def run() -> list[str]:
        deadlines = Deadlines()
        told: list[str] = []
        second = reply()

        def first_is_late(_: ErrorCode) -> None:
            told.append("first")
            deadlines.remove(second)

        deadlines.add(reply(), 0, first_is_late)
        deadlines.add(second, 0, lambda _: told.append("second"))
        for _ in range(200):
            if deadlines.tick > 3:
                break
            await asyncio.sleep(TICK_MS / 2000)
            if deadlines._timer is None:
                break
        return told

    assert run_virtually(run()) == ["first"]
