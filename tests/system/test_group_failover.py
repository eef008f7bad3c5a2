"""A group outlives the broker that coordinates it: no rebalance, no commit lost, none backwards."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

COUNT = 60


def coordinator(cluster: Cluster, group: str) -> ClusterBroker:
    return cluster.coordinator("__consumer_offsets", group)


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_members_go_on_where_they_were_when_their_coordinator_ends(
    moldau_cluster: Cluster, end: str
) -> None:
    cluster, group, topic = moldau_cluster, f"outlives-{end}", f"outlives-{end}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(wait_seconds_max())
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(wait_seconds_max()) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    assigned: list[int] = []
    consumer.subscribe([topic], on_assign=lambda _, parts: assigned.append(len(parts)))
    seen: list[int] = []
    ended: ClusterBroker | None = None
    while len(seen) < COUNT:
        message = consumer.poll(wait_seconds_max())
        assert message is not None
        assert message.error() is None
        seen.append(int(message.value() or b""))
        if len(seen) == COUNT // 3:
            ended = coordinator(cluster, group)
            ended.kill() if end == "killed" else ended.stop()
        commit(consumer, len(seen), topic)
    assert seen == list(range(COUNT))
    assert assigned == [1]
    assert ended is not None
    assert coordinator(cluster, group) is not ended
    ended.start()
    cluster.wait_ready()
    # Leadership goes back to it about now.
    (stored,) = again(lambda: consumer.committed([TopicPartition(topic, 0)], wait_seconds_max()))
    assert stored.offset == COUNT
    consumer.close()


LOOKING = {"_WAIT_COORD", "_TIMED_OUT", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"}
"""What librdkafka says of a coordinator that is being looked for; not all of it as retriable."""


def commit(consumer: Consumer, offset: int, topic: str) -> None:
    place = TopicPartition(topic, 0, offset)
    again(lambda: consumer.commit(offsets=[place], asynchronous=False))


class Looking(Exception):
    """The coordinator is being looked for."""


def again(ask: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """As an application does: again while the coordinator is being looked for."""

    def attempt() -> list[TopicPartition]:
        try:
            return ask()
        except KafkaException as failed:
            error = failed.args[0]
            assert error.retriable() or error.name() in LOOKING, error
            raise Looking(error) from None

    return wait_until(attempt, "the coordinator answers", ignoring=Looking)
