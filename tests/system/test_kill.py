"""Brokers that are killed or told to stop in the middle of a load lose nothing they acknowledged.

The check knows nothing of the broker: producers note what was acknowledged and where, a consumer
reads everything back.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from raw_client import RawClient

pytestmark = pytest.mark.system

KILLS = 8
"""`make faults` kills more often."""
PARTITIONS = 3
SEED = 20261115
PENDING_MAX = 300


class History:
    """What producers sent, and what the broker said of it. Values are unique."""

    def __init__(self) -> None:
        self.sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.failed: dict[bytes, str] = {}

    def delivered(self, error: Any, message: Any) -> None:
        value = message.value()[:20]
        if error is not None:
            self.failed[value] = error.str()
        else:
            self.acked[value] = (message.partition(), message.offset())

    def check(self, found: dict[int, list[bytes]], acked: dict[bytes, tuple[int, int]]) -> None:
        """Every acknowledged value is at its place; each is there once, in the order of sending."""
        for partition, values in found.items():
            assert len(set(values)) == len(values), f"partition {partition} holds a value twice"
            order = {value: number for number, value in enumerate(self.sent[partition])}
            places = [order[value] for value in values]
            assert places == sorted(places), f"partition {partition} is out of order"
        for value, (partition, offset) in acked.items():
            assert offset < len(found[partition]), f"{value!r} at {partition}/{offset} is lost"
            assert found[partition][offset] == value


def read_back(broker: Broker, topic: str) -> dict[int, list[bytes]]:
    """Every value of every partition; fails unless offsets go 0, 1, 2, …"""
    with RawClient(broker.host, broker.port) as raw:
        ends = {
            number: raw.list_offset(topic, -1, partition=number) for number in range(PARTITIONS)
        }
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "check",
            "check.crcs": True,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        )

        def has_read_all() -> bool:
            messages: list[Any] = consumer.consume(1000, 0.5)
            for message in messages:
                assert message.error() is None, message.error()
                values = found[message.partition()]
                assert message.offset() == len(values), "offsets are not dense"
                values.append(message.value()[:20])
            return all(len(found[number]) >= end.offset for number, end in ends.items())

        wait_until(has_read_all, "the log is read to its end")
    finally:
        consumer.close()
    return found


class Load:
    """An idempotent producer that sends until it is told to stop; bounded by what is pending."""

    def __init__(self, broker: Broker, topic: str, history: History, rng: random.Random) -> None:
        self._topic = topic
        self._history = history
        self._rng = rng
        self._stopped = threading.Event()
        self._number = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if len(self._producer) < PENDING_MAX:
                self._send()
            self._producer.poll(0.002)

    def _send(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        # Mostly small messages, now and then one that fills a batch of its own.
        size = 200_000 if self._rng.random() < 0.02 else self._rng.choice((10, 100, 2000))
        for _ in range(self._rng.choice((1, 1, 20))):
            value = b"%020d" % self._number
            self._number += 1
            self._history.sent[partition].append(value)
            self._producer.produce(
                self._topic,
                value + b"x" * size,
                partition=partition,
                on_delivery=self._history.delivered,
            )

    def finish(self) -> None:
        """Send no more, and wait until all that was sent is acknowledged."""
        self._stopped.set()
        self._thread.join(wait_seconds_max())
        assert not self._thread.is_alive()
        assert self._producer.flush(wait_seconds_max()) == 0


@contextmanager
def loaded_broker(
    directory: Path, settings: dict[str, str] | None = None
) -> Iterator[tuple[Broker, History, Load]]:
    with Broker(data_dir=directory / "data", settings=settings) as broker:
        with RawClient(broker.host, broker.port) as raw:
            raw.create_well("load", partitions=PARTITIONS)
        history = History()
        load = Load(broker, "load", history, random.Random(SEED))
        yield broker, history, load


def wait_for_acks(history: History, count: int) -> None:
    """Until that many more messages are acknowledged."""
    wanted = len(history.acked) + count
    wait_until(
        lambda: len(history.acked) >= wanted,
        f"{count} more are acknowledged",
        describe=lambda: f"failed: {history.failed}",
    )


@pytest.mark.safety
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    # Small segments, so that some kills hit the moment of rolling.
    settings = {"LOG__FLUSH": "always", "LOG__SEGMENT_BYTES": "1000000"}
    with loaded_broker(tmp_path, settings) as (broker, history, load):
        for _ in range(KILLS):
            wait_for_acks(history, rng.choice((20, 100, 300)))
            time.sleep(rng.random() * 0.02)
            broker.kill()
            # A dead broker acknowledges nothing; what the producer still learns, it was told.
            acked = dict(history.acked)
            broker.start()
            history.check(read_back(broker, "load"), acked)
        load.finish()
        assert history.failed == {}
        found = read_back(broker, "load")
        history.check(found, history.acked)
        assert len(history.acked) == sum(map(len, history.sent.values()))
        assert found == history.sent


@pytest.mark.safety
@pytest.mark.parametrize("stop", [Broker.stop, Broker.interrupt])
def test_a_stop_under_load_is_clean_and_clients_go_on_after_it(
    tmp_path: Path, stop: Callable[[Broker], int]
) -> None:
    with loaded_broker(tmp_path) as (broker, history, load):
        for _ in range(2):
            wait_for_acks(history, 200)
            assert stop(broker) == 0
            broker.start()
        load.finish()
        assert history.failed == {}
        found = read_back(broker, "load")
        history.check(found, history.acked)
        assert found == history.sent
        assert stop(broker) == 0
        assert "Traceback" not in broker.output


def bytes_read(broker: Broker) -> int:
    """What the process has read so far, from files and pipes."""
    counters = Path(f"/proc/{broker.pid}/io").read_text()
    return int(counters.split("rchar: ")[1].split()[0])


def test_a_restart_after_a_clean_stop_scans_nothing(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data", settings={"LOG__SEGMENT_BYTES": "20000000"}) as broker:
        with RawClient(broker.host, broker.port) as raw:
            raw.create_well("topic")
        broker.restart()
        before = bytes_read(broker)
        written = 0
        with RawClient(broker.host, broker.port) as raw:
            for number in range(50):
                assert raw.produce_well("topic", b"x" * 1_000_000) == number
                written += 1_000_000
        broker.restart()
        # Indexes and marks are read, batches are not.
        assert bytes_read(broker) - before < written / 20
        with RawClient(broker.host, broker.port) as raw:
            assert raw.list_offset("topic", -1).offset == 50
            assert raw.produce_well("topic", b"next") == 50
