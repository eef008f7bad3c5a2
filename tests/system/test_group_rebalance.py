"""Groups on three brokers: they rebalance on while their coordinator's broker dies."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from group_member import SECONDS_MAX, Member, shared

from moldau.service.groups import java_hash
from moldau.testing.cluster import Cluster, ClusterBroker

pytestmark = pytest.mark.system

PARTITIONS = 6


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {
        "GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
        # Longer than the death of a coordinator lasts, also on a busy machine.
        "GROUP__CONSUMER_SESSION_TIMEOUT_MS": "15000",
    }
    with Cluster(brokers=3, settings=settings) as started:
        yield started


def coordinator(cluster: Cluster, group: str) -> ClusterBroker:
    topics = {topic["name"]: topic for topic in cluster.topology()["topics"]}
    partitions = len(topics["__consumer_offsets"]["partitions"])
    return cluster.leader("__consumer_offsets", java_hash(group) % partitions)


def until(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


@pytest.mark.parametrize("client", ["confluent consumer", "confluent cooperative"])
def test_a_group_rebalances_while_its_coordinator_is_killed(cluster: Cluster, client: str) -> None:
    topic = group = "assigned"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    sent = 0

    def write() -> None:
        nonlocal sent
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(SECONDS_MAX) == 0
        sent += 1

    with Member(client, cluster.bootstrap, group, topic) as first:
        until(lambda: len(first.owned) == PARTITIONS, "the first gets nothing")
        write()
        # It has a position in each partition. Without one, librdkafka asks the leader where the
        # partition begins; if that broker dies, the question fails after seconds, when the next
        # leader has long answered, is asked anew, and the member may begin again at the start.
        until(lambda: len({p for p, _, _ in first.got}) == PARTITIONS, "the first reads nothing")
        with Member(client, cluster.bootstrap, group, topic) as second:
            # In the middle: the second joins, the first is asked to let go, and the broker dies.
            killed = coordinator(cluster, group)
            killed.kill()
            write()
            until(lambda: shared([first, second], PARTITIONS), "the members do not share")
            stayed = first.owned
            write()
            second.kill()
            until(lambda: len(first.owned) == PARTITIONS, "nobody takes over")
            write()
            until(
                lambda: (
                    {p for p, offset, _ in first.got if offset == sent - 1}
                    == set(range(PARTITIONS))
                ),
                "not all is read",
            )
            got = {(p, offset) for one in (first, second) for p, offset, _ in one.got}
        assert got == {(p, offset) for p in range(PARTITIONS) for offset in range(sent)}
        # What stayed was read once and in order, through the death and both rebalances. Classic
        # members start over when a rebalance is lost with its coordinator, from what is committed.
        if client == "confluent consumer":
            # Two reasons to read again, told apart: the group took its place from the member, or
            # the member had its place and lost its position in a partition.
            assert stayed.isdisjoint(first.lost), f"{first.lost} were taken, of {stayed} too"
            for partition in stayed:
                offsets = [offset for where, offset, _ in first.got if where == partition]
                assert offsets == list(range(sent)), f"{stayed} stayed, read were {first.got}"
        killed.start()
        cluster.wait_ready()
        first.leave()
    last = committed(cluster, group, topic)
    assert last == [sent] * PARTITIONS


def committed(cluster: Cluster, group: str, topic: str) -> list[int]:
    asker = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    try:
        wanted = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return [one.offset for one in asker.committed(wanted, SECONDS_MAX)]
            except KafkaException:
                # Leadership goes back to the broker that was away, about now.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    finally:
        asker.close()
