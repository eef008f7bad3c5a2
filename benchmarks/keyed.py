"""Many small producers of keyed messages in one process, each with a librdkafka of its own.

Keys spread the messages over all partitions of the topic, so that a batch holds few of them: the
load of the OpenMessaging benchmark, and of most services. No Python object exists per message.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections import Counter
from itertools import accumulate
from typing import Any

from benchmarks import rdkafka
from benchmarks.latencies import bucket
from benchmarks.rdkafka import EVENT_DELIVERY_REPORT, LibrdkafkaError, Message

PARTITION_BY_KEY = -1
KEYS = 10_000
PREPARED = 4_096
TICK_SECONDS = 0.001


class Supply:
    """Prepared messages of many sizes and keys, handed out as slices of one array."""

    def __init__(self, size_min: int, size_max: int, seed: int = 1) -> None:
        rng = random.Random(seed)
        self._body = ctypes.create_string_buffer(b"m" * size_max, size_max)
        keys = [f"key-{rng.randrange(KEYS):06d}".encode() for _ in range(PREPARED)]
        self._keys = [ctypes.create_string_buffer(key, len(key)) for key in keys]
        self._messages = (Message * PREPARED)()
        sizes = [rng.randint(size_min, size_max) for _ in range(PREPARED)]
        for message, key, size in zip(self._messages, self._keys, sizes, strict=True):
            message.payload, message.len = ctypes.addressof(self._body), size
            message.key, message.key_len = ctypes.addressof(key), len(key)
        self._bytes_until = [0, *accumulate(sizes)]
        self._at = 0

    def take(self, count: int) -> tuple[Any, int]:
        """The next `count` messages, as an argument for librdkafka, and their bytes."""
        if self._at + count > PREPARED:
            self._at = 0
        start, self._at = self._at, self._at + count
        first = ctypes.byref(self._messages[0], start * ctypes.sizeof(Message))
        return first, self._bytes_until[self._at] - self._bytes_until[start]


class KeyedProducer:
    """One client. Latencies of deliveries are counted where `latencies` is given."""

    def __init__(
        self, config: dict[str, str], topic: str, latencies: Counter[int] | None = None
    ) -> None:
        self._lib = lib = rdkafka.load()
        only_errors = "true" if latencies is None else "false"
        self._handle = rdkafka.new_handle(
            lib, {**config, "delivery.report.only.error": only_errors}, delivery_events=True
        )
        self._events = lib.rd_kafka_queue_get_main(self._handle)
        self._topic = lib.rd_kafka_topic_new(self._handle, topic.encode(), None)
        self._latencies = latencies

    def pending(self) -> int:
        return int(self._lib.rd_kafka_outq_len(self._handle))

    def send(self, supply: Supply, count: int) -> int:
        """Queue messages; their bytes."""
        messages, size = supply.take(count)
        queued = self._lib.rd_kafka_produce_batch(self._topic, PARTITION_BY_KEY, 0, messages, count)
        if queued < count:
            raise LibrdkafkaError(f"{count - queued} messages were refused: is the queue full?")
        return size

    def count_deliveries(self) -> None:
        """Read the delivery reports that are there. Raises LibrdkafkaError for a failed one."""
        lib = self._lib
        while event := lib.rd_kafka_queue_poll(self._events, 0):
            if lib.rd_kafka_event_type(event) == EVENT_DELIVERY_REPORT:
                while message := lib.rd_kafka_event_message_next(event):
                    if message.contents.err:
                        text = lib.rd_kafka_err2str(message.contents.err).decode()
                        raise LibrdkafkaError(f"a message was not delivered: {text}")
                    if self._latencies is not None:
                        self._latencies[bucket(lib.rd_kafka_message_latency(message))] += 1
            lib.rd_kafka_event_destroy(event)


class KeyedProducers:
    """Several of them, driven by one thread."""

    def __init__(self, spec: dict[str, Any], *, with_latencies: bool) -> None:
        self.latencies: Counter[int] = Counter()
        self._supply = Supply(spec["size_min"], spec["size_max"])
        config = {
            "bootstrap.servers": spec["bootstrap"],
            "acks": str(spec.get("acks", -1)),
            "linger.ms": str(spec.get("linger_ms", 1)),
            "batch.size": str(spec.get("batch_bytes", 16_384)),
            "queue.buffering.max.messages": "1000000",
            "message.timeout.ms": "60000",
            "log_level": "0",
        }
        counted = self.latencies if with_latencies else None
        self._members = [
            KeyedProducer(config, spec["topic"], counted) for _ in range(spec["producers"])
        ]
        # Connects each to every leader.
        for member in self._members:
            member.send(self._supply, PREPARED // 16)
        self.flush(60.0)
        self.latencies.clear()

    def send_all(self, count: int, chunk: int, pending_max: int) -> tuple[int, int]:
        """As fast as they are acknowledged; messages, at least `count`, and their bytes."""
        sent = size = 0
        while sent < count:
            before = sent
            for member in self._members:
                if sent < count and member.pending() + chunk <= pending_max:
                    size += member.send(self._supply, chunk)
                    sent += chunk
            if sent == before:
                time.sleep(TICK_SECONDS / 2)
        return sent, size

    def send_paced(self, rate: float, seconds: float, stopped: Any = None) -> tuple[int, int]:
        """At a fixed rate, whatever is acknowledged, until the end or `stopped` (an event)."""
        begun, sent, size = time.perf_counter(), 0, 0
        while (elapsed := time.perf_counter() - begun) < seconds:
            if stopped is not None and stopped.is_set():
                break
            for _ in range(int(elapsed * rate) - sent):
                size += self._members[sent % len(self._members)].send(self._supply, 1)
                sent += 1
            self.count_deliveries()
            time.sleep(TICK_SECONDS)
        return sent, size

    def count_deliveries(self) -> None:
        for member in self._members:
            member.count_deliveries()

    def flush(self, seconds_max: float) -> None:
        deadline = time.perf_counter() + seconds_max
        while True:
            self.count_deliveries()
            if not any(member.pending() for member in self._members):
                return
            if time.perf_counter() > deadline:
                raise LibrdkafkaError(f"messages still unacknowledged after {seconds_max} s")
            time.sleep(TICK_SECONDS)
