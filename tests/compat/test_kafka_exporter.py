"""danielqsj/kafka_exporter against a broker, on request: MOLDAU_TEST_LANGUAGES=go.

It is a usual way to watch Kafka by its protocol alone, and is built from the Go module proxy.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from scrape import Scrape

from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(600)]

MODULE, VERSION = "github.com/danielqsj/kafka_exporter", "v1.9.0"
WANTED = "go" in os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split()


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    if not WANTED:
        pytest.skip("fetches packages; wanted with MOLDAU_TEST_LANGUAGES=go")
    return built_by_go(tmp_path_factory.mktemp("exporter"))


def built_by_go(place: Path) -> Path:
    """Fetched first and then built, so that only what cannot be fetched is skipped."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go")
    (place / "go.mod").write_text("module exporter\n")
    fetched = go(place, "get", f"{MODULE}@{VERSION}")
    if fetched.returncode:
        pytest.skip(f"{MODULE} cannot be fetched: {fetched.stderr.strip()}")
    built = go(place, "build", "-o", "kafka_exporter", MODULE)
    assert built.returncode == 0, built.stderr
    return place / "kafka_exporter"


def go(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=5 * wait_seconds_max(),
        check=False,
    )


@pytest.mark.parametrize(
    ("failing", "expected"), [("get", pytest.skip.Exception), ("build", AssertionError)]
)
def test_only_what_cannot_be_fetched_is_skipped(
    failing: str, expected: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "go"
    program.write_text(f'#!/bin/sh\n[ "$1" != {failing} ] || {{ echo "no reason" >&2; exit 1; }}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(expected, match="no reason"):
        built_by_go(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(pytest.skip.Exception, match="there is no Go"):
        built_by_go(tmp_path)


@pytest.fixture
def exported(broker: Broker, exporter: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running exporter."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with open(tmp_path / "exporter.txt", "w") as output:
        process = subprocess.Popen(
            [exporter, f"--kafka.server={broker.bootstrap}", f"--web.listen-address={address}"],
            stdout=output,
            stderr=output,
        )
    try:
        yield address
        assert process.poll() is None, (tmp_path / "exporter.txt").read_text()
    finally:
        process.terminate()
        process.wait(wait_seconds_max())


def read(address: str) -> Scrape:
    connection = HTTPConnection(address, timeout=wait_seconds_max())
    try:
        connection.request("GET", "/metrics")
        return Scrape(connection.getresponse().read().decode())
    finally:
        connection.close()


def test_the_exporter_has_complete_metrics(broker: Broker, exported: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("exported", 1)])["exported"].result(wait_seconds_max())
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce("exported", f"{number}".encode(), partition=0)
    assert producer.flush(wait_seconds_max()) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "shown", "enable.auto.commit": False}
    )
    consumer.subscribe(["exported"])
    wait_until(lambda: consumer.poll(1.0) is not None, "the member has its partition")
    wanted = [confluent_kafka.TopicPartition("exported", 0, 4)]
    consumer.commit(offsets=wanted, asynchronous=False)
    partition = {"topic": "exported", "partition": "0"}
    group = {"consumergroup": "shown"}
    expected = [
        ("kafka_brokers", {}, 1),
        ("kafka_topic_partitions", {"topic": "exported"}, 1),
        ("kafka_topic_partition_current_offset", partition, 10),
        ("kafka_topic_partition_oldest_offset", partition, 0),
        ("kafka_topic_partition_leader", partition, 1),
        ("kafka_topic_partition_leader_is_preferred", partition, 1),
        ("kafka_topic_partition_replicas", partition, 1),
        ("kafka_topic_partition_in_sync_replica", partition, 1),
        ("kafka_topic_partition_under_replicated_partition", partition, 0),
        ("kafka_consumergroup_members", group, 1),
        ("kafka_consumergroup_current_offset", {**group, **partition}, 4),
        ("kafka_consumergroup_current_offset_sum", {**group, "topic": "exported"}, 4),
        ("kafka_consumergroup_lag", {**group, **partition}, 6),
        ("kafka_consumergroup_lag_sum", {**group, "topic": "exported"}, 6),
    ]
    missing: list[str] = []

    def is_complete() -> bool:
        told = read(exported)
        missing[:] = [
            f"{name}{labels}: {told.series(name, **labels)}, not {value}"
            for name, labels, value in expected
            if told.series(name, **labels) != [value]
        ]
        return not missing

    try:
        wait_until(is_complete, "all is there", ignoring=OSError, describe=lambda: missing)
    finally:
        consumer.close()
