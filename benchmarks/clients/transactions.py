"""Transactions of a hundred messages, by one producer or by several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from benchmarks.clients.pump import LoadError

MESSAGES = 100
"""Of a transaction, and of a batch."""
MESSAGE = b"x" * 100
WAIT_SECONDS_MAX = 60.0


def settings(address: str) -> dict[str, str | int | float]:
    # A batch is sent when it is full, not before. Idempotent and transactional: acks=all.
    return {
        "bootstrap.servers": address,
        "enable.idempotence": "true",
        "batch.num.messages": MESSAGES,
        "linger.ms": 1000,
    }


def one_transaction(producer: Producer, topic: str, partition: int) -> None:
    producer.begin_transaction()
    for _ in range(MESSAGES):
        producer.produce(topic, MESSAGE, partition=partition)
    producer.commit_transaction(WAIT_SECONDS_MAX)


def transactions(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """As many transactions as go into `seconds`; producer n writes to partition n."""
    topic, seconds = spec["topic"], spec["seconds"]
    producers = []
    for number in range(spec["producers"]):
        own = {**settings(spec["bootstrap"]), "transactional.id": f"{topic}-{number}"}
        producer = Producer(own)
        producer.init_transactions(WAIT_SECONDS_MAX)
        one_transaction(producer, topic, number)
        producers.append(producer)

    def run() -> dict[str, Any]:
        times: list[float] = []
        failures: list[BaseException] = []
        begun = time.perf_counter()

        def one(number: int) -> None:
            try:
                while (at := time.perf_counter()) < begun + seconds:
                    one_transaction(producers[number], topic, number)
                    times.append(time.perf_counter() - at)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(producers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - begun
        if failures:
            raise LoadError(f"a producer failed: {failures[0]}")
        times.sort()
        return {
            "wall_s": wall,
            "messages": len(times) * MESSAGES,
            "bytes": len(times) * MESSAGES * len(MESSAGE),
            "p50_us": times[len(times) // 2] * 1e6,
            "p99_us": times[len(times) * 99 // 100] * 1e6,
        }

    return run


LOADS = {"kafka-transactions": transactions}
