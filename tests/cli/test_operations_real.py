"""What operators do to a cluster of three brokers: rebalance, settings, and the doctor's look.

As docs/operate/rebalancing.md and docs/operate/doctor.md say.
"""

import json
import threading
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import admin

from moldau.cli.errors import ExitCode
from moldau.client.errors import UnreachableError
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"GROUP__OFFSETS_PARTITIONS": "3", "GROUP__INITIAL_REBALANCE_DELAY_MS": "0"}
    with Cluster(3, settings=settings) as started:
        yield started


@pytest.fixture
def call(cli, cluster):
    """A command that must succeed."""

    def run(*arguments):
        outcome = cli(*arguments, "-b", cluster.bootstrap)
        assert outcome.code == 0, outcome
        return outcome

    return run


class Load:
    """Sends numbered messages with acks=all until it is left; what was acknowledged is kept."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        sent = 0
        while not self._stop.is_set():
            self._producer.produce(
                self._topic, value=str(sent), partition=sent % 6, on_delivery=self._on_delivery
            )
            sent += 1
            self._producer.poll(0.002)
        assert self._producer.flush(wait_seconds_max()) == 0

    def _on_delivery(self, error, message) -> None:
        assert error is None, error
        self.acknowledged.append(int(message.value()))


def read_all(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(6)])
    found: list[int] = []

    def read() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
        return len(found) >= count

    wait_until(read, f"{count} messages are read")
    consumer.close()
    return found


@pytest.mark.safety
def test_a_plan_is_carried_out_under_load_and_nothing_is_lost(call, cli, cluster, tmp_path):
    path = tmp_path / "plan.yaml"
    call("topic", "create", "moved", "-p", 6, "-r", 2)
    call("partition", "move", "moved", "--to", "1,2", "-y")
    with Load(cluster.bootstrap, "moved") as load:
        wait_until(lambda: len(load.acknowledged) > 100, "the load runs")
        planned = json.loads(
            call("partition", "plan", "--topic", "moved", "--file", path, "-o", "json").out
        )
        assert any(3 in move["to"] for move in planned["moves"])
        call("partition", "apply", path, "--dry-run")
        call("partition", "apply", path, "-y", "--batch", 2)
        before = len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > before + 100, "the load goes on")
    assert sorted(load.acknowledged) == list(range(len(load.acknowledged)))
    assert sorted(read_all(cluster.bootstrap, "moved", len(load.acknowledged))) == sorted(
        load.acknowledged
    )
    again = call("partition", "apply", path, "-y")
    assert "nothing to move" in again.err
    assert (
        json.loads(call("partition", "plan", "--topic", "moved", "-o", "json").out)["moves"] == []
    )
    held = [number for move in planned["moves"] for number in move["to"]]
    assert held.count(3) == 4, "a third of the replicas"
    # Somebody else moves a partition: the plan is not the cluster's any more.
    call("partition", "move", f"moved:{planned['moves'][0]['partition']}", "--to", "1,2,3", "-y")
    outcome = cli("partition", "apply", path, "-y", "-b", cluster.bootstrap)
    assert outcome.code == ExitCode.FAILED
    assert "does not fit the cluster" in outcome.err


def test_a_broker_is_drained_by_a_plan(call, tmp_path):
    call("topic", "create", "drained", "-p", 3, "-r", 2)
    path = tmp_path / "plan.json"
    call("partition", "plan", "--topic", "drained", "--drain", 2, "--file", path)
    call("partition", "apply", path, "-y")
    shown = json.loads(call("topic", "describe", "drained", "-o", "json").out)
    assert all(2 not in part["replicas"] for part in shown["partitions"])
    assert all(len(part["replicas"]) == 2 for part in shown["partitions"])


def is_refused(address: str) -> bool:
    try:
        with KafkaClient(address, timeout=wait_seconds_max()) as client:
            client.cluster_id()
    except UnreachableError:
        return True
    return False


def settings(call, number, *names):
    rows = json.loads(
        call("cluster", "config", "get", *names, "--broker", number, "-o", "json").out
    )
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def test_settings_change_at_run_time_for_all_brokers_or_one(call, cli, cluster):
    assert settings(call, 1, "message.max.bytes")["message.max.bytes"][1] == "default"
    # As in the file, too.
    call("cluster", "config", "set", "topic.message_bytes_max=2000", "max.connections=300")
    call("cluster", "config", "set", "--broker", 2, "max.connections.per.ip=1")

    def seen(number):
        return settings(call, number, "message.max.bytes", "max.connections.per.ip")

    expected = {
        "message.max.bytes": ("2000", "cluster"),
        "max.connections.per.ip": ("2048", "default"),
    }
    wait_until(lambda: seen(1) == expected, "broker 1 has the settings")
    # Broker 2 takes one connection at a time now.
    second = cluster.brokers[2].address
    with KafkaClient(second, timeout=wait_seconds_max()) as first:
        first.cluster_id()
        wait_until(lambda: is_refused(second), "broker 2 has the setting")
    call("cluster", "config", "set", "--broker", 2, "-d", "max.connections.per.ip")
    large = cli("produce", "moved", "-m", "x" * 3000, "-b", cluster.bootstrap)
    assert large.code != 0
    cluster.brokers[3].stop()
    cluster.brokers[3].start()
    cluster.wait_ready()
    assert settings(call, 3, "message.max.bytes")["message.max.bytes"] == ("2000", "cluster")
    call("cluster", "config", "set", "-d", "message.max.bytes", "-d", "max.connections")
    assert settings(call, 3, "message.max.bytes")["message.max.bytes"][1] == "default"


def test_clients_of_kafka_change_the_same_settings(call, cluster):
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    for operation, expected in (
        (admin.AlterConfigOpType.SET, ("90", "broker")),
        (admin.AlterConfigOpType.DELETE, ("4096", "default")),
    ):
        entry = admin.ConfigEntry("max.connections", "90", incremental_operation=operation)
        resource = admin.ConfigResource(admin.ResourceType.BROKER, "1", incremental_configs=[entry])
        (future,) = client.incremental_alter_configs([resource]).values()
        future.result(wait_seconds_max())

        def is_seen(expected=expected):
            return settings(call, 1, "max.connections") == {"max.connections": expected}

        wait_until(is_seen, "the setting is changed")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["kafka.addr=127.0.0.1:1"], "kafka.addr changes only by a restart"),
        (["num.partitions=3"], "num.partitions changes only by a restart"),
        (["log.retention.sm=1"], "did you mean log.retention.ms"),
        (["max.connections=0"], "max.connections"),
        ([], "nothing to change"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(cli, cluster, arguments, text):
    outcome = cli("cluster", "config", "set", *arguments, "-b", cluster.bootstrap)
    assert outcome.code != 0
    assert text in outcome.err


def wrong(outcome):
    return {row["check"]: row for row in json.loads(outcome.out) if row["verdict"] != "ok"}


def verdicts(shown: str, check: str) -> set[str]:
    return {row["verdict"] for row in json.loads(shown) if row["check"] == check}


def test_the_doctor_sees_what_is_wrong_with_a_cluster(call, cli, cluster):
    doctor = ("doctor", "-b", cluster.bootstrap, "-o", "json", "--idle", "0")
    cluster.wait_ready()
    shown = json.loads(cli(*doctor).out)
    ports = [row for row in shown if "Kafka, gRPC, HTTP and Raft" in row["detail"]]
    assert [row["check"] for row in ports] == ["broker 1", "broker 2", "broker 3"]
    for check in ("clocks", "disk", "open files", "broker versions"):
        assert all(row["verdict"] == "ok" for row in shown if row["check"] == check), check
    # A replica of a partition that was made just now may be a moment behind.
    wait_until(lambda: verdicts(cli(*doctor).out, "partitions") == {"ok"}, "all are in sync")
    # Two problems are staged: a topic with one replica, and a group that never commits.
    call("topic", "create", "alone", "-r", 1)
    call("produce", "alone", "-m", "1")
    options = {"bootstrap.servers": cluster.bootstrap, "group.id": "never"}
    consumer = confluent_kafka.Consumer(
        {**options, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["alone"])
    wait_until(lambda: consumer.poll(0.2) is not None, "the group reads")
    found = wrong(cli(*doctor))
    assert "alone has one replica" in found["copies"]["detail"]
    assert "moldau partition move alone --to 1,2,3" in found["copies"]["hint"]
    assert "never has members, and has never committed" in found["groups"]["detail"]
    # It commits, and is stuck: the messages after that wait.
    consumer.commit(offsets=[confluent_kafka.TopicPartition("alone", 0, 0)], asynchronous=False)
    stuck = wrong(cli(*doctor))["groups"]["detail"]
    assert "never makes no progress in alone:0: 1 message wait" in stuck
    consumer.close()
    # A third one: a broker is stopped.
    cluster.brokers[3].stop()
    wait_until(lambda: not cluster.topology()["brokers"][2]["alive"], "broker 3 is known as dead")
    outcome = cli(*doctor)
    assert outcome.code == ExitCode.FAILED
    found = wrong(outcome)
    assert "no heartbeat" in found["broker 3"]["detail"]
    assert "moldau broker remove 3" in found["broker 3"]["hint"]
    by_http = cli("doctor", "--http", cluster.brokers[1].http_address, "-o", "json")
    assert by_http.code == ExitCode.FAILED
    cluster.brokers[3].start()
    cluster.wait_ready()
