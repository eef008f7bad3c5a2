"""Brokers with a majority of the replicas of some partitions are lost for good.

docs/operate/disaster.md says what an operator does then.
"""

import subprocess
import sys

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from moldau_command import run_moldau

from moldau.client.wire.client import KafkaClient
from moldau.coordination.coordinator_service import java_hash
from moldau.metadata.voters import VOTERS_MAX
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.replica.only_voter import EPOCH_DISTANCE
from moldau.testing.cluster import NOT_YET, Cluster
from moldau.testing.logs import headers_of
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

TOPIC = "t"
GROUP = "g"
OFFSETS = "__consumer_offsets"


def produce(bootstrap: str, count: int) -> int:
    batch = build_batch([Record(Offset(0), TimestampMs(1_000), None, b"v", [])])
    with KafkaClient(bootstrap, timeout=wait_seconds_max()) as client:
        for _ in range(count):
            client.produce(TOPIC, 0, batch)
        return client.list_offset(TOPIC, 0)


def count_records(bootstrap: str) -> int:
    """All that can be read from the start on."""
    with KafkaClient(bootstrap, timeout=wait_seconds_max()) as client:
        end = client.list_offset(TOPIC, 0)
        found = offset = 0
        while offset < end:
            headers = headers_of(client.fetch(TOPIC, 0, offset))
            found += sum(header.record_count for header in headers)
            offset = headers[-1].next_offset
    return found


def numbers(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def committed(bootstrap: str, *, commit: int | None = None) -> int:
    """The offset of the group, after it has committed this one, if any."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        if commit is not None:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, commit)], asynchronous=False)
        return consumer.committed([TopicPartition(TOPIC, 0)], timeout=wait_seconds_max())[0].offset
    finally:
        consumer.close()


def brokers_to_lose(cluster: Cluster) -> list[int]:
    """Three of six, and so few voters of the metadata that these keep their majority."""

    def voters() -> list[int] | None:
        found = cluster.topology()["voters"]
        return found if len(found) == VOTERS_MAX else None

    voting = wait_until(voters, "all voters of the metadata", ignoring=NOT_YET)
    (outside,) = {broker.number for broker in cluster.brokers} - set(voting)
    assert outside != 1
    return sorted([outside, *[voter for voter in voting if voter != 1][:2]])


def recover(cluster: Cluster, lost: list[int], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            *("-m", "moldau", "partition", "recover", "--lost", numbers(lost)),
            *("--http", cluster.brokers[1].http_address),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )


@pytest.mark.safety
def test_the_replica_that_is_left_goes_on_and_lost_brokers_stay_out() -> None:
    with Cluster(6) as cluster:
        lost = brokers_to_lose(cluster)
        left_over = {broker.number for broker in cluster.brokers} - {*lost}
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic(TOPIC, replication_factor=3)
            client.create_topic("later", replication_factor=3)
        for topic in (TOPIC, "later"):
            run_moldau(
                *("partition", "move", topic, "--to", numbers([1, *lost[:2]]), "-y"),
                *("-b", cluster.brokers[1].address),
            )
        assert produce(cluster.bootstrap, 20) == 20
        # All that is known of this group is on brokers that will be lost.
        assert committed(cluster.bootstrap, commit=20) == 20
        topics = {known["name"]: known for known in cluster.topology()["topics"]}
        state = java_hash(GROUP) % len(topics[OFFSETS]["partitions"])
        run_moldau(
            *("partition", "move", f"{OFFSETS}:{state}", "--to", numbers(lost), "-y"),
            *("-b", cluster.brokers[1].address),
        )
        cluster.wait_ready()

        alive = recover(cluster, lost, "-y")
        assert alive.returncode != 0
        assert "is not lost" in alive.stderr

        for number in lost:
            cluster.brokers[number].kill()
        shown = wait_until(
            lambda: done if (done := recover(cluster, lost, "--dry-run")).returncode == 0 else None,
            "nobody hears the lost brokers any more",
            describe=lambda: recover(cluster, lost, "--dry-run").stderr,
        )
        assert shown is not None
        assert "t:0" in shown.stdout
        assert f"{OFFSETS}:{state}: no replica is left: it begins again" in shown.stderr
        unasked = recover(cluster, lost)
        assert unasked.returncode != 0
        assert "may be lost" in unasked.stderr
        assert "confirm with -y" in unasked.stderr
        assert len(cluster.topology()["brokers"]) == 6

        done = recover(cluster, lost, TOPIC, f"{OFFSETS}:{state}", "-y")
        assert done.returncode == 0, done.stderr
        assert f"{OFFSETS}:{state}: no replica is left: it begins again" in done.stderr
        left = cluster.brokers[1].address
        assert produce(left, 5) == 25
        assert count_records(left) == 25

        # The brokers are removed, and the other partition waits for its own recovery, also when
        # the survivor is killed meanwhile.
        cluster.brokers[1].kill()
        cluster.brokers[1].start()
        assert count_records(left) == 25
        assert cluster.partition("later", 0)["leader"] == -1
        done = recover(cluster, lost, "-y")
        assert done.returncode == 0, done.stderr
        assert "later:0" in done.stdout
        assert f"{TOPIC}:0" not in done.stdout
        assert cluster.leader("later", 0).number == 1

        def is_replicated() -> bool:
            found = cluster.partition(TOPIC, 0)
            return len(found["in_sync"]) == len(found["replicas"]) == 3

        wait_until(is_replicated, "three replicas again", ignoring=NOT_YET)
        found = cluster.partition(TOPIC, 0)
        assert not set(found["replicas"]) & set(lost)
        assert found["leader_epoch"] > EPOCH_DISTANCE
        topology = cluster.topology()
        assert {broker["id"] for broker in topology["brokers"]} == left_over
        wait_until(
            lambda: set(cluster.topology()["voters"]) == left_over, "they leave the metadata group"
        )

        # Their directories were not lost after all: together they were the majority.
        for number in lost:
            cluster.brokers[number].launch()
        for number in lost:
            broker = cluster.brokers[number]
            wait_until(lambda broker=broker: not broker.is_running, "it is refused")
            assert "was removed from this cluster" in broker.output
        found = cluster.partition(TOPIC, 0)
        assert found["leader"] in left_over
        assert produce(left, 1) == 26
        assert recover(cluster, lost, "-y").returncode == 0

        # Nothing was left of the state of the group: it begins again.
        assert committed(left) == OFFSET_INVALID
        assert committed(left, commit=26) == 26
