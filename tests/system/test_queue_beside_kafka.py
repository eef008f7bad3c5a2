"""One topic, read by a group of Kafka's consumers and by a queue group at the same time."""

import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer

from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.system, pytest.mark.compat]

COUNT = 600


class Seen:
    """What the members of a group got, all together."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.is_given_up = False

    def add(self, values: list[str]) -> None:
        with self._lock:
            self.values.update(values)

    @property
    def is_over(self) -> bool:
        return self.has_all or self.is_given_up

    @property
    def has_all(self) -> bool:
        return len(self.values) == COUNT


def consume(bootstrap: str, seen: Seen) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kafka-group",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 45_000,
        }
    )
    consumer.subscribe(["orders"])
    while not seen.is_over:
        messages = consumer.consume(50, 0.2)
        seen.add([(m.value() or b"").decode() for m in messages if m.error() is None])
    consumer.close()


def work(client: QueueClient, seen: Seen) -> None:
    with client.connect("queue-group", "orders") as worker:
        while not seen.is_over:
            messages = worker.poll(20, 0.5)
            assert worker.ack(messages) == []
            seen.add([message.text for message in messages])


def test_a_kafka_group_and_a_queue_group_each_get_every_message(
    moldau_broker: Broker,
) -> None:
    with QueueClient(moldau_broker.grpc_address) as client:
        client.create_topic("orders", partitions=3)
        kafka, queue = Seen(), Seen()
        members = [(consume, moldau_broker.bootstrap, kafka)] * 2 + [(work, client, queue)] * 3
        readers = [threading.Thread(target=one, args=(how, seen)) for one, how, seen in members]
        for reader in readers:
            reader.start()
        # Half of it by a client of Kafka's, half by the queue's.
        producer = Producer({"bootstrap.servers": moldau_broker.bootstrap})
        for number in range(COUNT // 2):
            producer.produce("orders", f"k{number}".encode(), key=str(number).encode())
        client.send_many("orders", [f"q{number}" for number in range(COUNT // 2)])
        assert producer.flush(wait_seconds_max()) == 0
        try:
            wait_until(lambda: kafka.has_all and queue.has_all, "both groups have every message")
        finally:
            kafka.is_given_up = queue.is_given_up = True
            for reader in readers:
                reader.join(wait_seconds_max())
        assert not any(reader.is_alive() for reader in readers)
        sent = {f"{kind}{number}" for kind in "kq" for number in range(COUNT // 2)}
        assert set(kafka.values) == set(queue.values) == sent
        assert set(queue.values.values()) == {1}
        stats = client.stats("queue-group")
        assert sum(part.ready + part.leased + part.dead for part in stats.partitions) == 0
