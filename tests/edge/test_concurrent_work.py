"""Works of one request: each with an outcome of its own, all within one deadline."""

import asyncio

import pytest

from harness.virtual_loop import run_virtually
from moldau.edge.concurrent_work import run_each
from moldau.model.errors import ErrorCode, RefusedError


async def refuse_odd(number: int) -> None:
    if number % 2:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{number} is odd")
    # The others end in another order than they began.
    await asyncio.sleep(0.001 * (number % 3))


def test_outcomes_come_in_the_order_of_their_items() -> None:
    found = run_virtually(run_each(refuse_odd, range(500), 60_000))
    assert [None if each is None else str(each) for each in found] == [
        f"{number} is odd" if number % 2 else None for number in range(500)
    ]


def test_no_items_have_no_outcomes() -> None:
    assert run_virtually(run_each(refuse_odd, [], 10_000)) == []


def test_what_is_not_done_in_time_is_said_to_be_late_and_goes_on() -> None:
    # A command that is half way into the metadata log must not be dropped there.
    async def run() -> tuple[list[RefusedError | None], bool]:
        go_on = asyncio.Event()
        ended = asyncio.Event()

        async def dawdle(is_slow: bool) -> None:
            if is_slow:
                await go_on.wait()
                ended.set()

        found = await run_each(dawdle, [False, True], 50)
        was_ended = ended.is_set()
        go_on.set()
        async with asyncio.timeout(60):
            await ended.wait()
        return found, was_ended

    (done, late), was_ended = run_virtually(run())
    assert done is None
    assert late is not None
    assert late.code is ErrorCode.REQUEST_TIMED_OUT
    assert "50 ms" in str(late)
    assert not was_ended


async def hang(_: int) -> None:
    await asyncio.get_running_loop().create_future()


def test_a_timeout_below_zero_waits_for_nothing() -> None:
    (late,) = run_virtually(run_each(hang, [1], -1))
    assert late is not None
    assert late.code is ErrorCode.REQUEST_TIMED_OUT


def test_only_so_many_works_run_at_once_and_none_begins_after_the_deadline() -> None:
    async def run() -> tuple[list[RefusedError | None], int, int]:
        started = 0
        go_on = asyncio.Event()

        async def dawdle(_: int) -> None:
            nonlocal started
            started += 1
            await go_on.wait()

        found = await run_each(dawdle, range(200), 50)
        by_then = started
        go_on.set()
        async with asyncio.timeout(60):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)
        return found, by_then, started

    found, by_then, started = run_virtually(run())
    assert 0 < by_then < 200
    assert started == by_then
    assert all(each is not None and each.code is ErrorCode.REQUEST_TIMED_OUT for each in found)


def test_a_long_list_of_refusals_lets_others_have_their_turn() -> None:
    async def refuse(_: int) -> None:
        raise RefusedError(ErrorCode.INVALID_REQUEST)

    async def run() -> int:
        asking = asyncio.ensure_future(run_each(refuse, range(10_000), 60_000))
        turns = 0
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert run_virtually(run()) > 100


def test_an_internal_error_is_not_taken_for_a_refusal() -> None:
    async def fail(_: int) -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        run_virtually(run_each(fail, [1], 10_000))


def test_works_end_with_the_broker() -> None:
    async def run() -> int:
        asking = asyncio.ensure_future(run_each(hang, [1, 2], 10_000))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert run_virtually(run()) == 1
