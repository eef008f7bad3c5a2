"""What the Python client adds to confluent-kafka: both in one process, on one handle, in turns.

Turns lie milliseconds apart, so what else the machine does hits both alike: the ratio of their
medians holds where neither of the times does. Each load runs for the client of threads and for
that of coroutines.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from moldau.client.kafka.async_consumer import AsyncConsumer
from moldau.client.kafka.async_producer import AsyncProducer
from moldau.client.kafka.consumer import Consumer
from moldau.client.kafka.producer import Producer

POLL_EVERY = 64
BATCH = 500
FLUSH_SECONDS_MAX = 60.0
FETCH_AHEAD_SECONDS = 1.5


class Took(NamedTuple):
    """Seconds by the clock on the wall, and of the CPU for all threads of the process."""

    wall: float
    cpu: float


Turn = Callable[[], Awaitable[Took]]


class Watch:
    """Started when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def took(self, share: float = 1.0) -> Took:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Took(wall * share, cpu * share)


async def _alternate(base: Turn, ours: Turn, rounds: int) -> tuple[list[Took], list[Took]]:
    """What each took, after one round that counts for neither."""
    theirs, mine = [], []
    for number in range(rounds + 1):
        pair = (base, ours) if number % 2 else (ours, base)
        took = {turn: await turn() for turn in pair}
        if number:
            theirs.append(took[base])
            mine.append(took[ours])
    return theirs, mine


def _result(
    theirs: list[Took], mine: list[Took], messages: int, size: int, began: float
) -> dict[str, Any]:
    base, ours = (statistics.median(took.wall for took in turns) for turns in (theirs, mine))
    base_cpu, ours_cpu = (statistics.median(took.cpu for took in turns) for turns in (theirs, mine))
    count = 2 * messages * len(theirs)
    return {
        "wall_s": time.perf_counter() - began,
        "messages": count,
        "bytes": count * size,
        "base_us": base / messages * 1e6,
        "ours_us": ours / messages * 1e6,
        "ratio": ours / base,
        "cpu_ratio": ours_cpu / base_cpu,
    }


# --- send -----------------------------------------------------------------------------------------


def _base_send(client: Any, topic: str, value: bytes, count: int) -> Turn:
    async def turn() -> Took:
        failed = 0

        def delivered(error: object, _: object) -> None:
            nonlocal failed
            if error is not None:
                failed += 1

        watch = Watch()
        for number in range(count):
            client.produce(topic, value, on_delivery=delivered)
            if not number % POLL_EVERY:
                client.poll(0)
        left = client.flush(FLUSH_SECONDS_MAX)
        took = watch.took()
        if left or failed:
            raise SystemExit(f"{left + failed} of {count} messages did not arrive")
        return took

    return turn


def send(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    topic, count, value = spec["topic"], spec["count"], b"x" * spec["size"]

    async def run() -> dict[str, Any]:
        began = time.perf_counter()
        with Producer(spec["bootstrap"]) as producer:
            producer.send(topic, value).result(FLUSH_SECONDS_MAX)
            client = next(iter(producer._outboxes.values())).client

            async def ours() -> Took:
                watch = Watch()
                for _ in range(count):
                    producer.send(topic, value)
                producer.flush(FLUSH_SECONDS_MAX)
                return watch.took()

            base = _base_send(client, topic, value, count)
            return _result(
                *await _alternate(base, ours, spec["rounds"]), count, spec["size"], began
            )

    return lambda: asyncio.run(run())


def async_send(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    topic, count, value = spec["topic"], spec["count"], b"x" * spec["size"]

    async def run() -> dict[str, Any]:
        began = time.perf_counter()
        async with AsyncProducer(spec["bootstrap"]) as producer:
            await (await producer.send(topic, value))
            sender = producer._sender
            if sender is None:
                raise SystemExit("the producer is not connected")
            client = next(iter(sender._outboxes.values())).client

            async def ours() -> Took:
                watch = Watch()
                for _ in range(count):
                    await producer.send(topic, value)
                await producer.flush(FLUSH_SECONDS_MAX)
                return watch.took()

            base = _base_send(client, topic, value, count)
            return _result(
                *await _alternate(base, ours, spec["rounds"]), count, spec["size"], began
            )

    return lambda: asyncio.run(run())


# --- poll -----------------------------------------------------------------------------------------


def _fill(spec: dict[str, Any]) -> None:
    value = b"x" * spec["size"]
    # The rounds, the one before them, and what fetching ahead leaves in the last batches.
    with Producer(spec["bootstrap"]) as producer:
        for _ in range(2 * spec["count"] * (spec["rounds"] + 2)):
            producer.send(spec["topic"], value)


def _base_poll(client: Any, count: int) -> Turn:
    async def turn() -> Took:
        found = size = 0
        watch = Watch()
        while found < count:
            for message in client.consume(min(BATCH, count - found), 1.0):
                if message.error() is None:
                    found += 1
                    size += len(message.value())
        return watch.took()

    return turn


def poll(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    _fill(spec)
    count = spec["count"]

    async def run() -> dict[str, Any]:
        began = time.perf_counter()
        with Consumer(spec["bootstrap"], group_id="facade", max_poll_records=BATCH) as consumer:
            consumer.subscribe(spec["topic"])
            while not consumer.poll():
                pass
            time.sleep(FETCH_AHEAD_SECONDS)

            async def ours() -> Took:
                found = size = 0
                watch = Watch()
                while found < count:
                    for message in consumer.poll(1.0):
                        found += 1
                        size += len(message.value or b"")
                return watch.took(count / found)

            base = _base_poll(consumer._client, count)
            return _result(
                *await _alternate(base, ours, spec["rounds"]), count, spec["size"], began
            )

    return lambda: asyncio.run(run())


def async_poll(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    _fill(spec)
    count = spec["count"]

    async def run() -> dict[str, Any]:
        began = time.perf_counter()
        async with AsyncConsumer(
            spec["bootstrap"], group_id="facade-async", max_poll_records=BATCH
        ) as consumer:
            await consumer.subscribe(spec["topic"])
            while not await consumer.poll():
                pass
            await asyncio.sleep(FETCH_AHEAD_SECONDS)

            async def ours() -> Took:
                found = size = 0
                watch = Watch()
                while found < count:
                    for message in await consumer.poll(1.0):
                        found += 1
                        size += len(message.value or b"")
                return watch.took(count / found)

            reader = consumer._reader
            if reader is None:
                raise SystemExit("the consumer is not connected")
            base = _base_poll(reader._client, count)
            return _result(
                *await _alternate(base, ours, spec["rounds"]), count, spec["size"], began
            )

    return lambda: asyncio.run(run())


LOADS = {
    "facade-send": send,
    "facade-async-send": async_send,
    "facade-poll": poll,
    "facade-async-poll": async_poll,
}
