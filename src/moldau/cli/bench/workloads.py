"""The workloads of `moldau bench`: produce, consume, and end to end.

Each run is bounded in messages and in seconds. The result includes the Python client, which is
often the bottleneck, so its CPU time is reported, too.
"""

import random
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from moldau.cli.signals import Stop, stop_signals
from moldau.client.errors import TimedOutError
from moldau.client.kafka.connect import connect_producer, translate, translated
from moldau.client.kafka.librdkafka_settings import (
    REQUEST_SECONDS_MAX,
    consumer_settings,
    producer_settings,
)

Progress = Callable[[int], None]
"""Called with the number of messages done."""

_SAMPLES_MAX = 100_000
_PAYLOADS = 64
_STAMP = struct.Struct("<Q")
_NO_STAMP = bytes(_STAMP.size)
_REPORT_EVERY = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The parameters of a run."""

    brokers: str
    topic: str
    messages: int
    size: int
    seconds_max: float
    acks: str = "all"
    batch_bytes: int = 1_000_000
    linger_ms: float = 5
    compression: str = "none"
    rate: int = 0
    """Messages per second; 0: unlimited."""
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. Latencies are sorted, one per sampled message."""

    messages: int
    payload_bytes: int
    seconds: float
    client_cpu_seconds: float
    latencies_ms: Sequence[float]

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.payload_bytes / 1e6 / self.seconds if self.seconds else 0.0

    def percentile_ms(self, part: float) -> float | None:
        """The latency that this part of the samples does not exceed."""
        if not self.latencies_ms:
            return None
        last = len(self.latencies_ms) - 1
        return self.latencies_ms[min(last, int(part * len(self.latencies_ms)))]


class _Stopwatch:
    """Wall and CPU time since its creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._wall

    def result(self, messages: int, payload_bytes: int, latencies_ms: list[float]) -> Result:
        return Result(
            messages=messages,
            payload_bytes=payload_bytes,
            seconds=self.seconds,
            client_cpu_seconds=time.process_time() - self._cpu,
            latencies_ms=sorted(latencies_ms),
        )


class _Acknowledged:
    """Counts acknowledgements; keeps sampled latencies and the first error."""

    def __init__(self, messages: int) -> None:
        self.count = 0
        self.error: KafkaError | None = None
        self.latencies_ms: list[float] = []
        self._every = max(1, messages // _SAMPLES_MAX)

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.error = self.error or error
            return
        self.count += 1
        if self.count % self._every == 0:
            self.latencies_ms.append(message.latency() * 1000)

    def check(self, load: Load) -> None:
        if self.error is not None:
            raise translate(self.error, brokers=load.brokers, doing=f"produce to {load.topic}")


def _payloads(size: int) -> list[bytes]:
    """Half noise, half text, and not all equal: compresses like real data."""
    noise = random.Random(1)
    text = b"the moldau flows through prague; " * (size // 33 + 1)
    return [noise.randbytes(size // 2) + text[: size - size // 2] for _ in range(_PAYLOADS)]


def _producer(load: Load) -> Producer:
    settings = producer_settings(
        load.brokers,
        acks=load.acks,
        compression=load.compression,
        linger_ms=load.linger_ms,
        batch_bytes=load.batch_bytes,
        extra={"message.timeout.ms": "30000", **dict(load.properties)},
    )
    # Connect and get the producer id before the measurement starts.
    return connect_producer(settings, load.topic)[0]


def _check(stop: Stop) -> None:
    """Raise KeyboardInterrupt after a signal.

    Not in the signal handler: an exception raised within librdkafka's callbacks is lost.
    """
    if stop:
        raise KeyboardInterrupt


def _finish(producer: Producer, acknowledged: _Acknowledged, load: Load, stop: Stop) -> None:
    deadline = time.monotonic() + 35
    while len(producer) and time.monotonic() < deadline:
        _check(stop)
        with translated(load.brokers, f"produce to {load.topic}"):
            producer.flush(0.2)
    acknowledged.check(load)
    if len(producer):
        raise TimedOutError(f"{len(producer)} messages to {load.topic} were not acknowledged")


def run_produce(load: Load, progress: Progress) -> Result:
    """Send as fast as the client can; latency is from produce() to the acknowledgement."""
    with stop_signals() as stop:
        return _produce(load, progress, stop)


def _produce(load: Load, progress: Progress, stop: Stop) -> Result:
    producer, acknowledged = _producer(load), _Acknowledged(load.messages)
    payloads = _payloads(load.size)
    produce, poll, topic = producer.produce, producer.poll, load.topic
    watch = _Stopwatch()
    queued = 0
    try:
        while queued < load.messages:
            try:
                produce(topic, payloads[queued % _PAYLOADS], on_delivery=acknowledged)
            except BufferError:
                poll(0.01)
                _check(stop)
                continue
            queued += 1
            if queued % 64 == 0:
                poll(0)
                _check(stop)
            if queued % _REPORT_EVERY == 0:
                progress(acknowledged.count)
                acknowledged.check(load)
                if watch.seconds > load.seconds_max:
                    break
        _finish(producer, acknowledged, load, stop)
    finally:
        # After Ctrl-C or an error: messages left in the queue would make librdkafka request the
        # deleted topic, and the broker would create it again.
        producer.purge()
        producer.flush(1)
    progress(acknowledged.count)
    count = acknowledged.count
    return watch.result(count, count * load.size, acknowledged.latencies_ms)


def run_consume(load: Load, partitions: int, progress: Progress) -> Result:
    """Read the topic from its beginning, as fast as the client can."""
    consumer = _open_consumer(load)
    try:
        consumer.assign([TopicPartition(load.topic, number, -2) for number in range(partitions)])
        watch = _Stopwatch()
        count = payload_bytes = 0
        ended: set[int | None] = set()
        while count < load.messages and watch.seconds < load.seconds_max:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    count += 1
                    payload_bytes += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error.retriable():
                    raise translate(error, brokers=load.brokers, doing="consume")
            progress(count)
            if len(ended) == partitions:
                break
        return watch.result(count, payload_bytes, [])
    finally:
        consumer.close()


def _open_consumer(load: Load) -> Consumer:
    extra = dict(load.properties)
    try:
        consumer = Consumer(consumer_settings(load.brokers, from_beginning=True, extra=extra))
        consumer.list_topics(load.topic, timeout=REQUEST_SECONDS_MAX)
        return consumer
    except KafkaException as error:
        raise translate(error, brokers=load.brokers, doing="consume") from error


class _RateLimitedSender(threading.Thread):
    """Sends at a steady rate; each message contains the time at which it was due.

    Due, not sent: otherwise a stall of the broker would hide the latency of waiting messages.
    """

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._producer = _producer(load)
        self.acknowledged = _Acknowledged(load.messages)
        self.stopping = threading.Event()

    def run(self) -> None:
        load, payloads = self._load, _payloads(self._load.size)
        interval_ns = int(1e9 / load.rate) if load.rate else 0
        due = time.perf_counter_ns()
        for number in range(load.messages):
            due = due + interval_ns if interval_ns else time.perf_counter_ns()
            while (wait_ns := due - time.perf_counter_ns()) > 0 and not self.stopping.is_set():
                self._producer.poll(0)
                time.sleep(min(wait_ns / 1e9, 0.1))
            while not self.stopping.is_set():
                try:
                    value = _STAMP.pack(due) + payloads[number % _PAYLOADS][_STAMP.size :]
                    self._producer.produce(load.topic, value, on_delivery=self.acknowledged)
                except BufferError:
                    self._producer.poll(0.01)
                else:
                    self._producer.poll(0)
                    break
            if self.stopping.is_set() or self.acknowledged.error is not None:
                break
        self._producer.flush(35)


def run_e2e(load: Load, partitions: int, progress: Progress) -> Result:
    """Send and receive; latency is from the time a message is due to its arrival."""
    with stop_signals() as stop:
        return _send_and_receive(load, partitions, progress, stop)


def _send_and_receive(load: Load, partitions: int, progress: Progress, stop: Stop) -> Result:
    consumer = _open_consumer(load)
    sender = _RateLimitedSender(load)
    every = max(1, load.messages // _SAMPLES_MAX)
    latencies_ms: list[float] = []
    count = payload_bytes = 0
    try:
        consumer.assign([TopicPartition(load.topic, number, -2) for number in range(partitions)])
        _await_assignment(consumer, partitions, load)
        watch = _Stopwatch()
        sender.start()
        while count < load.messages and watch.seconds < load.seconds_max:
            _check(stop)
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                sender.acknowledged.check(load)
                continue
            now = time.perf_counter_ns()
            count += 1
            payload_bytes += len(message)
            if count % every == 0:
                (due,) = _STAMP.unpack_from(message.value() or _NO_STAMP)
                latencies_ms.append((now - due) / 1e6)
            if count % 100 == 0:
                progress(count)
        result = watch.result(count, payload_bytes, latencies_ms)
    finally:
        sender.stopping.set()
        if sender.ident is not None:
            sender.join(40)
        consumer.close()
    sender.acknowledged.check(load)
    progress(count)
    return result


def _await_assignment(consumer: Consumer, partitions: int, load: Load) -> None:
    """Wait until the consumer has reached the end of every partition, all empty."""
    deadline = time.monotonic() + 10
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(0.1)
        error = message.error() if message is not None else None
        at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        if message is not None and at_end:
            ended.add(message.partition())
        if time.monotonic() > deadline:
            raise TimedOutError(f"timed out after 10 s: no fetch from {load.topic} succeeded")
