"""Loads of the queue API, with our own client: what a worker and its broker make of messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients.pump import LoadError

GROUP = "bench"
_IDLE_S_MAX = 20.0
_SENDERS = 4


def _run(work: Any) -> Callable[[], dict[str, Any]]:
    """The client is imported by now, and its loop is the load's own."""
    import moldau.client.queue.client  # noqa: F401  (before the clock runs)

    return lambda: asyncio.run(work())


async def _send(client: Any, spec: dict[str, Any], count: int) -> None:
    """Batch by batch, each when the one before is acknowledged."""
    values = [b"m" * spec["size"]] * spec["batch"]
    for _ in range(0, count, spec["batch"]):
        await client.send_many(spec["topic"], values)


def cycle(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Messages are sent, polled and acked, all at the same time, in batches."""
    count, batch, size, workers = (spec[key] for key in ("count", "batch", "size", "workers"))

    async def work() -> dict[str, Any]:
        from moldau import AsyncQueueClient

        left = count
        async with AsyncQueueClient(spec["grpc"]) as client:
            crew = [
                await client.connect(GROUP, spec["topic"], mode="queue") for _ in range(workers)
            ]

            async def take(worker: Any) -> None:
                nonlocal left
                while left > 0:
                    messages = await worker.poll(batch, 0.5)
                    if not messages:
                        continue
                    if refused := await worker.ack(messages):
                        raise LoadError(f"an ack was refused: {refused[0]}")
                    left -= len(messages)

            started = time.perf_counter()
            senders = (_send(client, spec, count // _SENDERS) for _ in range(_SENDERS))
            await asyncio.gather(*senders, *map(take, crew))
            seconds = time.perf_counter() - started
            for worker in crew:
                await worker.close()
        return {"wall_s": seconds, "messages": count - left, "bytes": (count - left) * size}

    return _run(work)


def send(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Only sends, in batches, several of them under way."""
    count, batch, size = spec["count"], spec["batch"], spec["size"]

    async def work() -> dict[str, Any]:
        from moldau import AsyncQueueClient

        async with AsyncQueueClient(spec["grpc"]) as client:
            await _send(client, spec, batch)
            started = time.perf_counter()
            await asyncio.gather(*(_send(client, spec, count // _SENDERS) for _ in range(_SENDERS)))
            seconds = time.perf_counter() - started
        return {"wall_s": seconds, "messages": count, "bytes": count * size}

    return _run(work)


def share(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Many workers wait on one partition; how many of them get something of what comes?"""
    workers, each = spec["workers"], spec["each"]

    async def work() -> dict[str, Any]:
        from moldau import AsyncQueueClient

        async with AsyncQueueClient(spec["grpc"]) as client:
            crew = [
                await client.connect(GROUP, spec["topic"], mode="queue") for _ in range(workers)
            ]
            got = [0] * workers
            left = workers * each

            async def take(number: int) -> None:
                nonlocal left
                deadline = time.monotonic() + _IDLE_S_MAX
                while left > 0 and time.monotonic() < deadline:
                    messages = await crew[number].poll(1, 1.0)
                    got[number] += len(messages)
                    left -= len(messages)
                    await crew[number].ack(messages)

            started = time.perf_counter()
            values = [b"m" * 100] * left
            await asyncio.gather(
                client.send_many(spec["topic"], values), *map(take, range(workers))
            )
            seconds = time.perf_counter() - started
            for worker in crew:
                await worker.close()
        detail = {"with_work": sum(count > 0 for count in got), "most": max(got)}
        total = sum(got)
        return {"wall_s": seconds, "messages": total, "bytes": total * 100, **detail}

    return _run(work)


def redeliver(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A worker takes messages and says nothing; how long until another one has them?"""
    count, visibility = spec["count"], spec["visibility_s"]

    async def work() -> dict[str, Any]:
        from moldau import AsyncQueueClient

        async with AsyncQueueClient(spec["grpc"]) as client:
            silent = await client.connect(GROUP, spec["topic"], mode="queue")
            other = await client.connect(GROUP, spec["topic"], mode="queue")
            await client.send_many(spec["topic"], [b"m" * 100] * count)
            started = time.perf_counter()
            taken: list[Any] = []
            while len(taken) < count:
                taken += await silent.poll(count, 1.0, visibility=visibility)
            leased = time.perf_counter()
            again: list[Any] = []
            while len(again) < count and time.perf_counter() - leased < 10 * visibility:
                again += await other.poll(count, 1.0)
            seconds = time.perf_counter() - leased
            await other.ack(again)
            for worker in (silent, other):
                await worker.close()
        if len(again) < count:
            raise LoadError(f"{len(again)} of {count} messages came again")
        whole = time.perf_counter() - started
        detail = {"times": seconds / visibility}
        return {"wall_s": whole, "messages": count, "bytes": count * 100, **detail}

    return _run(work)


LOADS: dict[str, Callable[[dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "queue-cycle": cycle,
    "queue-send": send,
    "queue-share": share,
    "queue-redeliver": redeliver,
}
