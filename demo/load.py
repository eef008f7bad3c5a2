"""The producer of the demo: a bounded load, and when each click was taken by the brokers."""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from demo.events import Visitors, rate_at

TICK_SECONDS: Final = 0.02
BUCKET_SECONDS: Final = 0.25
"""Of the picture."""
FLUSH_SECONDS_MAX: Final = 90.0


class Ack(NamedTuple):
    """A click was taken: seconds since the load began, and by which partition."""

    at: float
    partition: int


class Gap(NamedTuple):
    """The longest time in which nothing was taken, in seconds since the load began."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Load:
    """Sends clicks in a thread of its own, with acks of all in-sync replicas."""

    def __init__(self, bootstrap: str, topic: str, *, rate: float, seconds: float) -> None:
        self._topic = topic
        self._rate = rate
        self._seconds = seconds
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "shop",
                # Each click once, and in order, whatever is sent again.
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": int(FLUSH_SECONDS_MAX * 1000),
                # That a broker is gone is what we show, and no news.
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._send, name="shop", daemon=True)
        self._stopping = threading.Event()
        self._began = 0.0
        self.sent = 0
        self.acked = 0
        self.failed = 0
        self.acks: list[Ack] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Sends no more, and waits for what is on its way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_SECONDS_MAX + 10)

    def _send(self) -> None:
        try:
            self._send_all()
        except BaseException as error:
            # Reported by the thread that waits for it.
            self.error = error

    def _send_all(self) -> None:
        visitors = Visitors()
        due = 0.0
        last = 0.0
        while not self._stopping.is_set() and (now := self.elapsed) < self._seconds:
            due += rate_at(now, self._rate) * (now - last)
            last = now
            while due >= 1:
                click = visitors.click(time.time_ns() // 1_000_000)
                self._produce(click.key, click.value)
                due -= 1
            self._producer.poll(0)
            self._stopping.wait(TICK_SECONDS)
        self._producer.flush(FLUSH_SECONDS_MAX)

    def _produce(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
                self.sent += 1
                return
            except BufferError:
                # Brokers are away for longer than the buffer lasts.
                self._producer.poll(0.1)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acked += 1
        partition = message.partition()
        assert partition is not None  # Of a message that was delivered.
        self.acks.append(Ack(self.elapsed, partition))


def per_second(
    times: Sequence[float], seconds: float, width: float = BUCKET_SECONDS
) -> list[float]:
    """Acks per second, in steps of `width`."""
    counts = [0] * max(1, round(seconds / width))
    for moment in times:
        counts[min(int(moment / width), len(counts) - 1)] += 1
    return [count / width for count in counts]


def longest_gap(times: Sequence[float]) -> Gap:
    """Between two acks that follow each other."""
    ordered = sorted(times)
    gaps = [Gap(one, two) for one, two in pairwise(ordered)]
    return max(gaps, key=lambda gap: gap.seconds, default=Gap(0.0, 0.0))


class Sampler:
    """Asks something every second in a thread of its own, for the picture."""

    def __init__(self, ask: Callable[[], float | None], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[tuple[float, float]] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.is_set():
            found = self._ask()
            if found is not None:
                self.samples.append((self._clock(), found))
            self._stopping.wait(1.0)
