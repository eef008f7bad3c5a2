"""The loop of a worker: what one slow partition may and may not hold up."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.client.queue.handler_loop import HandlerLoop
from moldau.client.queue.worker import AsyncWorker
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


class _Message(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


async def test_leases_are_extended_while_another_partition_has_no_leader() -> None:
    messages = [_Message(topic="t", partition=partition, is_settled=False) for partition in (0, 1)]
    extended: list[int] = []
    is_over = asyncio.Event()

    async def poll(count: int, seconds: float) -> list[Any]:
        given, messages[:] = messages[:], []
        await asyncio.sleep(0.001)
        return given

    async def extend(batch: list[Any], seconds: float) -> list[Any]:
        (partition,) = {message.partition for message in batch}
        extended.append(partition)
        if partition == 1:
            await asyncio.Event().wait()
        return []

    async def ack() -> None:
        pass

    for message in messages:
        message.ack = ack
    worker = SimpleNamespace(mode="queue", group="g", visibility=0.01, poll=poll, extend=extend)
    work = HandlerLoop(
        cast(AsyncWorker, worker),
        lambda message: is_over.wait(),
        concurrency=3,
        stop=is_over,
        idle=None,
        limit=None,
    )
    running = asyncio.create_task(work.run())
    await until(
        lambda: running.done() or extended.count(0) >= 5,
        "the healthy partition is extended again and again",
    )
    assert extended.count(1) == 1
    is_over.set()
    assert (await running).done == 2
