"""Owns an application that consumes, transforms and produces, with librdkafka's transactions."""

import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS_MAX = 60.0
PER_TRANSACTION = 5
PARTITIONS = 2
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def feed(bootstrap: str, name: str, *, inputs: int, replicas: int) -> None:
    """Make the topics, and write what is to be transformed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"{name}-{end}", PARTITIONS, replicas) for end in ("in", "out")]
    for made in admin.create_topics(topics).values():
        made.result(SECONDS_MAX)
    feeder = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(inputs):
        feeder.produce(f"{name}-in", b"%d" % number, partition=number % PARTITIONS)
    assert feeder.flush(SECONDS_MAX) == 0


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
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            producer = Producer({**self.common, "transactional.id": self.name, "linger.ms": 0})
            try:
                producer.init_transactions(SECONDS_MAX)
                return producer
            except KafkaException:
                assert time.monotonic() < deadline

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
                self.producer.produce(
                    f"{self.name}-out", message.value(), partition=message.partition()
                )
            self.producer.send_offsets_to_transaction(
                self.consumer.position(self.consumer.assignment()),
                self.consumer.consumer_group_metadata(),
                SECONDS_MAX,
            )
            self.commit()
        except KafkaException as failed:
            self.go_back(failed.args[0])
            return False
        return True

    def commit(self) -> None:
        while True:
            try:
                self.producer.commit_transaction(SECONDS_MAX)
                return
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise

    def go_back(self, error: KafkaError) -> None:
        """To what is committed: what was not is done again."""
        self.aborts += 1
        is_over = error.fatal()
        if error.txn_requires_abort():
            try:
                self.producer.abort_transaction(SECONDS_MAX)
            except KafkaException:
                is_over = True
        if is_over or not error.txn_requires_abort():
            self.rebirths += 1
            self.producer = self.born()
        assigned = self.consumer.assignment()
        stored = self.consumer.committed(assigned, SECONDS_MAX)
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
    deadline = time.monotonic() + SECONDS_MAX
    while ends < PARTITIONS:
        assert time.monotonic() < deadline, "the last stable offset does not advance"
        message = consumer.poll(5.0)
        if message is None:
            continue
        if message.error() is not None:
            ends += message.error().code() == KafkaError._PARTITION_EOF
            continue
        found[message.value() or b""] += 1
    consumer.close()
    return found
