"""Consume, transform, produce: each input once in the output, whoever is killed meanwhile."""

import random
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.cluster import Cluster, ClusterBroker

pytestmark = pytest.mark.system

SECONDS_MAX = 60.0
INPUTS = 120
PER_TRANSACTION = 5
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"


class Transformer:
    """What an application does, also when it is told to begin anew."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.aborts = 0
        self.rebirths = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self.consumer.subscribe([f"{name}-in"])
        self.producer = self.born()

    def born(self) -> Producer:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self.cluster.bootstrap,
                    "transactional.id": self.name,
                    "linger.ms": 0,
                },
                logger=None,
            )
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


def committed_output(cluster: Cluster, topic: str) -> Counter[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "look",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    found: Counter[bytes] = Counter()
    ends = 0
    deadline = time.monotonic() + SECONDS_MAX
    while ends < 2:
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


def test_each_input_is_in_the_output_exactly_once_whoever_is_killed(
    moldau_cluster: Cluster,
) -> None:
    cluster, name = moldau_cluster, "once"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [NewTopic(f"{name}-{end}", 2, 3) for end in ("in", "out")]
    for made in admin.create_topics(topics).values():
        made.result(SECONDS_MAX)
    feeder = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(INPUTS):
        feeder.produce(f"{name}-in", b"%d" % number, partition=number % 2)
    assert feeder.flush(SECONDS_MAX) == 0
    transformer = Transformer(cluster, name)
    # In the midst of a transaction, and of its end: nobody knows where that is hit.
    rng = random.Random(7)
    victims = [(STATE, 0), (f"{name}-out", 0), (OFFSETS, 0), (STATE, 0)]
    killed: ClusterBroker | None = None
    rounds = idle = 0
    while idle < 2 or victims:
        rounds += 1
        assert rounds < 200, "it does not come to an end"
        blow: threading.Timer | None = None
        if rounds % 4 == 0 and victims:
            if killed is not None:
                killed.start()
                cluster.wait_ready()
            killed = cluster.leader(*victims.pop(0))
            blow = threading.Timer(rng.uniform(0.0, 0.03), killed.kill)
            blow.start()
        idle = 0 if transformer.round() else idle + 1
        if blow is not None:
            blow.join()
    if killed is not None:
        killed.start()
    cluster.wait_ready()
    transformer.consumer.close()
    found = committed_output(cluster, f"{name}-out")
    assert found == Counter({b"%d" % number: 1 for number in range(INPUTS)})
