"""Three brokers lose none of what they acknowledged, whichever of them dies, stops or is cut off.

A selection of `make faults`, with few repetitions: real processes, unmodified idempotent producers,
and a checker that knows nothing of the broker.
"""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults.__main__ import play
from faults.catalogue import Scenario
from faults.report import line
from faults.run import Run
from faults.scenarios.three import network, processes
from faults.scenarios.three.processes import BROKERS
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

PARTITIONS = 3


def one_of_each(run: Run) -> None:
    """A leader dies, stands still, hears nobody; all die. `make faults` plays each alone."""
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    led = processes.kill_one_leader(run)
    processes.pause_one_leader(run, seconds=4.0)
    network.deafen_one_leader(run)
    processes.kill_all_once(run)
    run.await_whole()
    run.proof(f"the leader of {led} partitions ended by signal 9")
    run.finish()


@pytest.mark.safety
def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    scenario = Scenario(
        name="short",
        title="one of each",
        expected="acked lost 0",
        play=one_of_each,
        load=processes.LOAD,
    )
    played = play(scenario, tmp_path / "run", quick=True)
    assert played.status == "passed", line(played)
    assert played.result is not None
    assert len(played.result.proofs) == 3
    assert played.result.verdict.acked > 0
    assert played.result.verdict.clean


class Numbers:
    """Sends numbers, in order, to the partitions in turn."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._next = 0
        self.failed: list[KafkaError] = []
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self._producer.produce(
                self._topic,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=self._on_delivery,
            )
        self._next += count
        assert self._producer.flush(wait_seconds_max()) == 0
        assert self.failed == []

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)


def read(cluster: Cluster, topic: str, count: int) -> dict[int, list[int]]:
    """That many messages from the start of the topic on, and what more there is."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(wait_seconds_max())
        assert message is not None, f"{sum(map(len, found.values()))} of {count} came"
        error, partition = message.error(), message.partition()
        assert partition is not None
        if error is None:
            found[partition].append(int(message.value() or b""))
            ended.discard(partition)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(partition)
    consumer.close()
    return found


@pytest.mark.safety
def test_a_leader_can_be_killed_between_two_messages_and_come_back(
    moldau_cluster: Cluster,
) -> None:
    topic = "orders"
    admin = AdminClient({"bootstrap.servers": moldau_cluster.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(wait_seconds_max())
    numbers = Numbers(moldau_cluster, topic)
    numbers.send(300)
    leader = moldau_cluster.leader(topic, 0)
    assert leader.kill() == -9
    numbers.send(300)
    assert moldau_cluster.leader(topic, 0) is not leader
    leader.start()
    moldau_cluster.wait_ready()
    assert leader.number in moldau_cluster.partition(topic, 0)["in_sync"]
    numbers.send(300)
    expected = {p: list(range(p, 900, PARTITIONS)) for p in range(PARTITIONS)}
    assert read(moldau_cluster, topic, 900) == expected
