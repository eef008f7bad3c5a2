"""Calls that block run in threads, in their turn, and to their end."""

import asyncio
import threading
from functools import partial

import pytest

from moldau.client.kafka.thread_calls import CallThread, in_thread, to_its_end
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


def fail() -> None:
    raise KeyError("mine")


async def test_what_a_call_returns_or_raises_reaches_who_awaits_it() -> None:
    worker = CallThread("test")
    for run in (in_thread, to_its_end, worker.run):
        assert await run(lambda: 7) == 7
        with pytest.raises(KeyError, match="mine"):
            await run(fail)
        assert await run(threading.get_ident) != threading.get_ident()
    worker.stop()


async def test_a_cancelled_caller_leaves_at_once_and_the_log_has_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, over, logged = (threading.Event() for _ in range(3))

    def work() -> None:
        begun.set()
        over.wait(wait_seconds_max())
        logged.set()
        fail()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.to_thread(begun.wait, wait_seconds_max())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not over.is_set()
    over.set()
    await until(lambda: "mine" in caplog.text, "the error is logged")
    assert "after its caller was cancelled" in caplog.text


async def test_a_call_to_its_end_keeps_its_cancelled_caller_until_then() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait(wait_seconds_max())
        fail()

    task = asyncio.ensure_future(to_its_end(work))
    await asyncio.to_thread(begun.wait, wait_seconds_max())
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
    over.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.__notes__ == ["'mine'"]


async def test_calls_of_a_worker_run_one_after_the_other_and_one_that_is_cancelled_before_not() -> (
    None
):
    worker = CallThread("test")
    gate, begun = threading.Event(), threading.Event()
    ran: list[int] = []

    def work(number: int) -> None:
        begun.set()
        gate.wait(wait_seconds_max())
        ran.append(number)

    tasks = [asyncio.ensure_future(worker.run(partial(work, n))) for n in range(4)]
    await asyncio.to_thread(begun.wait, wait_seconds_max())
    # The first has begun and goes on; the third has not, and never will.
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.sleep(0.02)
    assert ran == []
    gate.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), wait_seconds_max())
    assert ran == [0, 1, 3]
    worker.stop()


async def test_a_callback_may_call_again_while_all_others_wait() -> None:
    worker = CallThread("test")
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def callback() -> None:
        assert worker.is_called_back
        await worker.run(lambda: order.append("inside"))

    def work() -> None:
        worker.call_back(loop, callback)
        order.append("call")

    others = (
        asyncio.ensure_future(worker.run(work)),
        asyncio.ensure_future(worker.run(lambda: order.append("other"))),
    )
    await asyncio.wait_for(asyncio.gather(*others), wait_seconds_max())
    assert order == ["inside", "call", "other"]
    assert not worker.is_called_back
    worker.stop()
