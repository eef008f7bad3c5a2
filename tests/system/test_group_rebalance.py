"""Groups on three brokers: they rebalance on while their coordinator's broker dies."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from group_member import Member, shared

from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

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
    return cluster.coordinator("__consumer_offsets", group)


@pytest.mark.safety
@pytest.mark.parametrize("client", ["confluent consumer", "confluent cooperative"])
def test_a_group_rebalances_while_its_coordinator_is_killed(cluster: Cluster, client: str) -> None:
    topic = group = "assigned"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(wait_seconds_max())
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    sent = 0

    def write() -> None:
        nonlocal sent
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(wait_seconds_max()) == 0
        sent += 1

    with Member(client, cluster.bootstrap, group, topic) as first:
        wait_until(lambda: len(first.owned) == PARTITIONS, "the first gets all")
        write()
        # It has a position in each partition. Without one, librdkafka asks the leader where the
        # partition begins; if that broker dies, the question fails after seconds, when the next
        # leader has long answered, is asked anew, and the member may begin again at the start.
        wait_until(
            lambda: len({p for p, _, _ in first.got}) == PARTITIONS, "the first reads of all"
        )
        with Member(client, cluster.bootstrap, group, topic) as second:
            # In the middle: the second joins, the first is asked to let go, and the broker dies.
            killed = coordinator(cluster, group)
            killed.kill()
            write()
            wait_until(lambda: shared([first, second], PARTITIONS), "the members share")
            stayed = first.owned
            write()
            second.kill()
            wait_until(lambda: len(first.owned) == PARTITIONS, "the first takes over")
            write()
            wait_until(
                lambda: (
                    {p for p, offset, _ in first.got if offset == sent - 1}
                    == set(range(PARTITIONS))
                ),
                "all is read",
            )
            got = {(p, offset) for one in (first, second) for p, offset, _ in one.got}
        assert got == {(p, offset) for p in range(PARTITIONS) for offset in range(sent)}
        # What stayed was read once and in order, through the death and both rebalances. Classic
        # members start over when a rebalance is lost with its coordinator, from what is committed.
        if client == "confluent consumer":
            # Two reasons to read again, distinguished: the group took its place from the member, or
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
        # Leadership goes back to the broker that was away, about now.
        found = wait_until(
            lambda: asker.committed(wanted, wait_seconds_max()),
            "the coordinator answers",
            ignoring=KafkaException,
        )
        return [one.offset for one in found]
    finally:
        asker.close()
