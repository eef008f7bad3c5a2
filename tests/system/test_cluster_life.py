"""The life of a cluster of real processes: brokers die, come back, join, leave, stop and start."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.client.errors import UnreachableError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker, BrokerFailedError
from moldau.testing.cluster import NOT_YET, Cluster
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def produce(bootstrap: str, count: int) -> int:
    """Each acknowledged by a majority; returns the end. A dead leader may be named for a while."""
    batch = build_batch([Record(Offset(0), TimestampMs(1_000), None, b"v", [])])
    sent = end = 0

    def send() -> bool:
        nonlocal sent, end
        try:
            with KafkaClient(bootstrap, timeout=wait_seconds_max()) as client:
                while sent < count:
                    client.produce("t", 0, batch)
                    sent += 1
                end = client.list_offset("t", 0)
        except UnreachableError as error:
            raise BrokerFailedError(f"{sent} of {count}: {error}") from None
        return True

    wait_until(send, "all is sent", ignoring=BrokerFailedError)
    return end


def create_topic(bootstrap: str) -> None:
    with KafkaClient(bootstrap, timeout=wait_seconds_max()) as client:
        client.create_topic("t", replication_factor=3)


def start_only(data_dir: Path, *options: str) -> "subprocess.Popen[str]":
    """A broker of which nobody waits for the ready line."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
    names = ("--kafka-addr", "--raft-addr", "--http-addr", "--grpc-addr")
    addresses = zip(names, ports, strict=True)
    flags = [part for pair in addresses for part in pair]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "moldau",
            "broker",
            "start",
            "--data-dir",
            str(data_dir),
            *flags,
            *options,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.safety
def test_what_was_acknowledged_outlives_a_leader_and_a_restart_of_all() -> None:
    with Cluster(3) as cluster:
        create_topic(cluster.bootstrap)
        assert produce(cluster.bootstrap, 5) == 5
        dead = cluster.leader("t", 0)
        dead.kill()
        assert produce(cluster.bootstrap, 5) == 10
        leader = cluster.leader("t", 0)
        assert leader is not dead
        dead.start()
        cluster.wait_ready()
        cluster.stop()
        cluster.start()
        cluster.kill()
        cluster.start()
        assert produce(cluster.bootstrap, 1) == 11
        found = cluster.topology()
        assert [broker["id"] for broker in found["brokers"]] == [1, 2, 3]
        # Five starts of each at most: none of them was somebody else.
        assert all(broker["epoch"] <= 6 for broker in found["brokers"])


def test_a_broker_joins_and_another_leaves_for_good() -> None:
    with Cluster(3) as cluster:
        create_topic(cluster.bootstrap)
        assert produce(cluster.bootstrap, 3) == 3
        leaving = cluster.leader("t", 0)
        with pytest.raises(OSError, match="400"):
            leaving.ask("/api/v1/cluster/leave", {"broker": leaving.number})
        fourth = cluster.add()
        # Asked of the youngest: any member will do.
        fourth.ask("/api/v1/cluster/leave", {"broker": leaving.number})
        process = leaving._process
        assert process is not None
        assert process.wait(wait_seconds_max()) == 0, leaving.output
        assert "was removed from its cluster" in leaving.output
        wait_until(
            lambda: (
                fourth.number in cluster.partition("t", 0)["replicas"]
                and leaving.number not in {b["id"] for b in cluster.topology()["brokers"]}
            ),
            "the move is done",
            ignoring=NOT_YET,
        )
        assert produce(fourth.address, 1) == 4
        # Its directory never comes back, neither by itself nor with an empty one under its number.
        with pytest.raises(BrokerFailedError, match="was removed from this cluster"):
            leaving.start()
        shutil.rmtree(leaving.data_dir)
        leaving._join = fourth.http_address
        with pytest.raises(BrokerFailedError, match="was removed from this cluster"):
            leaving.start()


def test_one_of_two_brokers_returns_with_another_address() -> None:
    """Its new address cannot be registered without its vote, for which it must be reached there."""
    with Cluster(2) as cluster:
        second = cluster.brokers[2]
        second.stop()
        second.raft_port = free_ports(1)[0]
        second.start()
        cluster.wait_ready()


def test_a_broker_that_waits_for_its_cluster_ends_when_it_is_stopped(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    process = start_only(tmp_path / "data", "--join-addr", nobody)
    assert process.stderr is not None
    for line in process.stderr:
        if "not joined yet" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, errors
    # It has promised nobody anything, but its directory was meant for a cluster.
    again = start_only(tmp_path / "data")
    _, errors = again.communicate(timeout=wait_seconds_max())
    assert again.returncode != 0
    assert "start with --join-addr" in errors


def test_a_copy_of_a_data_directory_ends_the_broker_it_was_copied_from(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        third = cluster.brokers[3]
        third.stop()
        shutil.copytree(third.data_dir, tmp_path / "copy")
        third.start()
        process = third._process
        assert process is not None
        copy = Broker(data_dir=tmp_path / "copy")

        def joining() -> list[str]:
            return [*Broker.arguments(copy)[2:], "--join-addr", cluster.brokers[1].http_address]

        copy.arguments = joining  # type: ignore[method-assign]
        with copy:
            assert process.wait(wait_seconds_max()) != 0
            assert "with a copy of this data directory" in third.output
            assert copy.is_running


@pytest.mark.safety
def test_when_all_three_say_that_they_are_ready_the_bootstrap_broker_can_be_lost_at_once() -> None:
    cluster = Cluster(brokers=3)
    try:
        first, second, third = (cluster.brokers[number] for number in (1, 2, 3))
        first.start()
        # Only their ready lines count here, as for whoever started them by hand.
        second.launch()
        third.launch()
        second.wait_ready()
        third.wait_ready()
        first.kill()
        bootstrap = f"{second.address},{third.address}"
        wait_until(
            lambda: can_create(bootstrap), "somebody leads the metadata", ignoring=BrokerFailedError
        )
    finally:
        cluster.close()


def can_create(bootstrap: str) -> bool:
    try:
        with KafkaClient(bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("t", replication_factor=2)
    except UnreachableError as error:
        raise BrokerFailedError(str(error)) from None
    return True
