"""Works of one request: each with an outcome of its own, all within one deadline."""

import asyncio

import pytest

from moldau.edge.kafka.outcomes import outcomes
from moldau.model.errors import ErrorCode, RefusedError


async def succeed() -> None:
    await asyncio.sleep(0)


async def refuse(code: ErrorCode) -> None:
    raise RefusedError(code, "said why")


def test_outcomes_come_in_the_order_of_their_works() -> None:
    works = [succeed(), refuse(ErrorCode.INVALID_REQUEST), succeed(), refuse(ErrorCode.NONE)]
    found = asyncio.run(outcomes(works, 10_000))
    assert [outcome and outcome.code for outcome in found] == [
        None,
        ErrorCode.INVALID_REQUEST,
        None,
        ErrorCode.NONE,
    ]


def test_no_works_have_no_outcomes() -> None:
    assert asyncio.run(outcomes([], 10_000)) == []


def test_what_is_not_done_in_time_is_said_to_be_late_and_goes_on() -> None:
    # A command that is half way into the metadata log must not be dropped there.
    async def run() -> tuple[list[RefusedError | None], bool, bool]:
        go_on = asyncio.Event()
        ended = asyncio.Event()

        async def dawdle() -> None:
            await go_on.wait()
            ended.set()

        found = await outcomes([succeed(), dawdle()], 50)
        was_done = ended.is_set()
        go_on.set()
        async with asyncio.timeout(60):
            await ended.wait()
        return found, was_done, ended.is_set()

    (done, late), was_done, is_done = asyncio.run(run())
    assert done is None
    assert late is not None
    assert late.code is ErrorCode.REQUEST_TIMED_OUT
    assert "50 ms" in str(late)
    assert (was_done, is_done) == (False, True)


def test_a_timeout_below_zero_waits_for_nothing() -> None:
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    (late,) = asyncio.run(outcomes([hang()], -1))
    assert late is not None
    assert late.code is ErrorCode.REQUEST_TIMED_OUT


def test_only_so_many_works_run_at_once_and_none_begins_after_the_deadline() -> None:
    async def run() -> tuple[list[RefusedError | None], int, int]:
        started = 0
        go_on = asyncio.Event()

        async def dawdle() -> None:
            nonlocal started
            started += 1
            await go_on.wait()

        found = await outcomes([dawdle() for _ in range(200)], 50)
        by_then = started
        go_on.set()
        async with asyncio.timeout(60):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)
        return found, by_then, started

    found, by_then, started = asyncio.run(run())
    assert 0 < by_then < 200
    assert started == by_then
    assert all(each is not None and each.code is ErrorCode.REQUEST_TIMED_OUT for each in found)


def test_a_defect_is_not_taken_for_a_refusal() -> None:
    async def fail() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        asyncio.run(outcomes([fail()], 10_000))


def test_works_end_with_the_request_that_asked_for_them() -> None:
    async def run() -> int:
        async def hang() -> None:
            await asyncio.get_running_loop().create_future()

        asking = asyncio.ensure_future(outcomes([hang(), hang()], 10_000))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
