"""Kafka loads through librdkafka: its C interface, and confluent-kafka's Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients.pump import LoadError, timed
from benchmarks.rdkafka import BulkProducer

FLUSH_S_MAX = 60.0
CONSUME_S_MAX = 60.0


def _producer_config(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": spec["bootstrap"],
        "acks": str(spec.get("acks", 1)),
        "batch.size": str(spec["batch_bytes"]),
        # The number of messages never ends a batch, the bytes do.
        "batch.num.messages": "1000000",
        "linger.ms": "5",
        "queue.buffering.max.messages": "2000000",
        "queue.buffering.max.kbytes": "2000000",
        # A retry within the run would hide that the broker stumbled.
        "message.timeout.ms": "60000",
        **spec.get("properties", {}),
    }


def produce_with_librdkafka(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Equal messages in chunks to each partition in turn; one Python call per chunk."""
    size, count, partitions = spec["size"], spec["count"], spec["partitions"]
    # About 4 MB a call: several batches of any size, and few calls.
    chunk = max(1, min(4_000_000 // size, count))
    producer = BulkProducer(_producer_config(spec), spec["topic"], size=size, chunk=chunk)
    for partition in range(partitions):
        producer.send(partition, 1)
    producer.flush(FLUSH_S_MAX)

    def work() -> int:
        done, turn = 0, 0
        while done < count:
            part = min(chunk, count - done)
            producer.send(turn % partitions, part)
            done, turn = done + part, turn + 1
        producer.flush(FLUSH_S_MAX)
        if producer.failed:
            raise LoadError(f"{producer.failed} messages were not delivered")
        return done

    return lambda: timed(count, size, work)


def produce_with_confluent(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The same load with `Producer.produce_batch`, a prepared list and no delivery callbacks."""
    from confluent_kafka import Producer

    size, count, partitions = spec["size"], spec["count"], spec["partitions"]
    producer = Producer(_producer_config(spec))
    topic, value = spec["topic"], b"m" * size
    chunk = max(1, min(4_000_000 // size, count))
    messages = [{"value": value} for _ in range(chunk)]
    for partition in range(partitions):
        producer.produce_batch(topic, messages[:1], partition)
    producer.flush(FLUSH_S_MAX)
    pending_max = 64_000_000 // size

    def work() -> int:
        done, turn = 0, 0
        while done < count:
            part = min(chunk, count - done)
            while len(producer) + part > pending_max:
                producer.poll(0.0005)
            batch = messages if part == chunk else messages[:part]
            done += producer.produce_batch(topic, batch, turn % partitions)
            turn += 1
        if producer.flush(FLUSH_S_MAX):
            raise LoadError("messages were not delivered in time")
        return done

    return lambda: timed(count, size, work)


def consume_with_confluent(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Reads assigned partitions from the start; queue settings tuned as SPEED says they must be."""
    from confluent_kafka import Consumer, TopicPartition

    size, count, partitions = spec["size"], spec["count"], spec["partitions"]
    consumer = Consumer(
        {
            "bootstrap.servers": spec["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 262_144,
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": 4_000_000,
            "fetch.max.bytes": 32_000_000,
            "fetch.wait.max.ms": 100,
            "check.crcs": False,
            **spec.get("properties", {}),
        }
    )
    topic = spec["topic"]
    # Connects and learns the leaders before the clock starts; fetching starts with the assignment.
    consumer.list_topics(topic, timeout=10)

    def work() -> int:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        deadline, seen = time.perf_counter() + CONSUME_S_MAX, 0
        while seen < count:
            got = consumer.consume(10_000, 0.1)
            if got and got[0].error():
                raise LoadError(str(got[0].error()))
            seen += len(got)
            if time.perf_counter() > deadline:
                raise LoadError(f"{seen} of {count} messages after {CONSUME_S_MAX} s")
        return seen

    return lambda: timed(count, size, work)


LOADS = {
    "kafka-produce": produce_with_librdkafka,
    "kafka-produce-confluent": produce_with_confluent,
    "kafka-consume-confluent": consume_with_confluent,
}
