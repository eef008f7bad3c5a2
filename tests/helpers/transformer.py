"""Owns an application that consumes, transforms and produces, with librdkafka's transactions."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.waiting import wait_seconds_max, wait_until

PER_TRANSACTION = 5
PARTITIONS = 2
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def feed(bootstrap: str, name: str, *, inputs: int, replicas: int) -> None:
    """Make the topics, and write what is to be transformed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"{name}-{end}", PARTITIONS, replicas) for end in ("in", "out")]
    for made in admin.create_topics(topics).values():
        made.result(wait_seconds_max())
    feeder = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(inputs):
        feeder.produce(f"{name}-in", b"%d" % number, partition=number % PARTITIONS)
    assert feeder.flush(wait_seconds_max()) == 0


class Transformer:
    """What an application does, also when it is told to begin anew."""

    def __init__(
        self, bootstrap: str, name: str, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        self.common = {"bootstrap.servers": bootstrap, "log_level": 0, **settings}
        self.name = name
        self.aborts = 0
        self.rebirths = 0
        self.consumer = Consumer(
            {
                **self.common,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self.consumer.subscribe([f"{name}-in"])
        self.producer = self.born()

    def born(self) -> Producer:
        return wait_until(self._initialized, "the producer is born", ignoring=KafkaException)

    def _initialized(self) -> Producer:
        producer = Producer({**self.common, "transactional.id": self.name, "linger.ms": 0})
        producer.init_transactions(wait_seconds_max())
        return producer

    def round(self) -> bool:
        """One transaction; whether there was anything to do and it was committed."""
        messages = [
            message
            for message in self.consumer.consume(PER_TRANSACTION, timeout=5.0)
            if message.error() is None
        ]
        if not messages:
            return False
        try:
            self.producer.begin_transaction()
            for message in messages:
                partition = message.partition()
                assert partition is not None
                self.producer.produce(f"{self.name}-out", message.value(), partition=partition)
            self.producer.send_offsets_to_transaction(
                self.consumer.position(self.consumer.assignment()),
                self.consumer.consumer_group_metadata(),
                wait_seconds_max(),
            )
            self.commit()
        except KafkaException as failed:
            self.go_back(failed.args[0])
            return False
        return True

    def commit(self) -> None:
        def is_committed() -> bool:
            try:
                self.producer.commit_transaction(wait_seconds_max())
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
                return False
            return True

        wait_until(is_committed, "the transaction is committed")

    def go_back(self, error: KafkaError) -> None:
        """To what is committed: what was not is done again."""
        self.aborts += 1
        is_over = error.fatal()
        if error.txn_requires_abort():
            try:
                self.producer.abort_transaction(wait_seconds_max())
            except KafkaException:
                is_over = True
        if is_over or not error.txn_requires_abort():
            self.rebirths += 1
            self.producer = self.born()
        assigned = self.consumer.assignment()
        stored = self.consumer.committed(assigned, wait_seconds_max())
        for place in stored:
            offset = max(place.offset, 0)
            self.consumer.seek(TopicPartition(place.topic, place.partition, offset))


def committed_output(bootstrap: str, topic: str) -> Counter[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "look",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(wait_seconds_max())
        assert message is not None, "the last stable offset does not advance"
        if (error := message.error()) is not None:
            ends += error.code() == KafkaError._PARTITION_EOF
            continue
        found[message.value() or b""] += 1
    consumer.close()
    return found
