"""Brokers with a majority of the replicas of some partitions are lost for good."""

import subprocess
import sys

import pytest
from moldau_command import run_moldau

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.replica.only_voter import EPOCH_DISTANCE
from moldau.testing.cluster import NOT_YET, Cluster
from moldau.testing.logs import headers_of
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

LOST = (4, 5)
TOPIC = "t"


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


def recover(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            *("-m", "moldau", "partition", "recover", "--lost", "4,5"),
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
    with Cluster(5) as cluster:
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic(TOPIC, replication_factor=3)
            client.create_topic("later", replication_factor=3)
        for topic in (TOPIC, "later"):
            run_moldau(
                *("partition", "move", topic, "--to", "1,4,5", "-y"),
                *("-b", cluster.brokers[1].address),
            )
        cluster.wait_ready()
        assert produce(cluster.bootstrap, 20) == 20

        alive = recover(cluster, "-y")
        assert alive.returncode != 0
        assert "is not lost" in alive.stderr

        for number in LOST:
            cluster.brokers[number].kill()
        shown = wait_until(
            lambda: done if (done := recover(cluster, "--dry-run")).returncode == 0 else None,
            "nobody hears the lost brokers any more",
            describe=lambda: recover(cluster, "--dry-run").stderr,
        )
        assert shown is not None
        assert "t:0" in shown.stdout
        unasked = recover(cluster)
        assert unasked.returncode != 0
        assert "may be lost" in unasked.stderr
        assert "confirm with -y" in unasked.stderr
        assert len(cluster.topology()["brokers"]) == 5

        done = recover(cluster, TOPIC, "-y")
        assert done.returncode == 0, done.stderr
        left = cluster.brokers[1].address
        assert produce(left, 5) == 25
        assert count_records(left) == 25

        # The brokers are removed, and the other partition waits for its own recovery, also when
        # the survivor is killed meanwhile.
        cluster.brokers[1].kill()
        cluster.brokers[1].start()
        assert count_records(left) == 25
        assert cluster.partition("later", 0)["leader"] == -1
        done = recover(cluster, "-y")
        assert done.returncode == 0, done.stderr
        assert "later:0" in done.stdout
        assert f"{TOPIC}:0" not in done.stdout
        assert cluster.leader("later", 0).number == 1

        def is_replicated() -> bool:
            found = cluster.partition(TOPIC, 0)
            return len(found["in_sync"]) == len(found["replicas"]) == 3

        wait_until(is_replicated, "three replicas again", ignoring=NOT_YET)
        found = cluster.partition(TOPIC, 0)
        assert not set(found["replicas"]) & set(LOST)
        assert found["leader_epoch"] > EPOCH_DISTANCE
        topology = cluster.topology()
        assert {broker["id"] for broker in topology["brokers"]} == {1, 2, 3}
        wait_until(
            lambda: set(cluster.topology()["voters"]) == {1, 2, 3}, "they leave the metadata group"
        )

        # Their directories were not lost after all: together they were the majority.
        for number in LOST:
            cluster.brokers[number].launch()
        for number in LOST:
            broker = cluster.brokers[number]
            wait_until(lambda broker=broker: not broker.is_running, "it is refused")
            assert "was removed from this cluster" in broker.output
        found = cluster.partition(TOPIC, 0)
        assert found["leader"] in (1, 2, 3)
        assert produce(left, 1) == 26
        assert recover(cluster, "-y").returncode == 0
