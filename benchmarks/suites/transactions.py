"""Transactional produce against idempotent produce, with batches of the same size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks import servers
from benchmarks.bench import Bench, topic
from benchmarks.harness import BenchmarkError, free_port

STEPS = 2
MESSAGES = 100
"""Of a transaction, and of a batch."""
MESSAGE = b"x" * 100
PRODUCERS = 8
SECONDS, SECONDS_QUICK = 5.0, 2.0
PIPELINED_MAX = 5 * MESSAGES
WAIT_SECONDS_MAX = 60.0


def run(bench: Bench) -> None:
    settings = {
        "MOLDAU_RAFT__ADDR": f"127.0.0.1:{free_port()}",
        "MOLDAU_HTTP__ADDR": f"127.0.0.1:{free_port()}",
    }
    seconds = SECONDS_QUICK if bench.quick else SECONDS
    with servers.moldau(bench.directory, settings=settings, name="transactions") as running:
        address = f"127.0.0.1:{running.port}"
        for count in (1, PRODUCERS):
            bench.step(f"{count} transactional, then {count} idempotent producers")
            for turn in range(bench.repetitions):
                with topic(running, count) as name:
                    rates = {}
                    for kind, work in (("transactional", _transact), ("idempotent", _produce)):
                        rates[kind] = _rate(work, address, name, count, seconds, turn)
                        bench.record(f"transactions.{count}.{kind}.messages_s", rates[kind])
                    ratio = rates["transactional"] / rates["idempotent"]
                    bench.record(f"transactions.{count}.ratio", ratio)
            bench.done()


Work = Callable[[str, str, int, str, float], int]


def _rate(work: Work, address: str, name: str, count: int, seconds: float, turn: int) -> float:
    """Messages per second of all of them."""
    done = [0] * count
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            done[number] = work(address, name, number, f"{name}-{turn}-{number}", seconds)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchmarkError(f"a producer failed: {failures[0]}")
    return sum(done) / seconds


def _settings(address: str) -> dict[str, str | int | float]:
    # A batch is sent when it is full, not before.
    return {
        "bootstrap.servers": address,
        "enable.idempotence": "true",
        "batch.num.messages": MESSAGES,
        "linger.ms": 1000,
    }


def _transact(address: str, name: str, partition: int, own: str, seconds: float) -> int:
    producer = Producer({**_settings(address), "transactional.id": own})
    producer.init_transactions(WAIT_SECONDS_MAX)
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        producer.begin_transaction()
        for _ in range(MESSAGES):
            producer.produce(name, MESSAGE, partition=partition)
        producer.commit_transaction(WAIT_SECONDS_MAX)
        sent += MESSAGES
    return sent


def _produce(address: str, name: str, partition: int, own: str, seconds: float) -> int:
    producer = Producer(_settings(address))
    for _ in range(MESSAGES):
        producer.produce(name, MESSAGE, partition=partition)
    producer.flush(WAIT_SECONDS_MAX)
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(MESSAGES):
            producer.produce(name, MESSAGE, partition=partition)
        sent += MESSAGES
        while len(producer) >= PIPELINED_MAX:
            producer.poll(0.001)
    left = producer.flush(WAIT_SECONDS_MAX)
    return sent - left
