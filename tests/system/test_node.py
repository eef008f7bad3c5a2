"""A node of real processes: one address, restarts, one stop."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from node_broker import NodeBroker, is_alive

from moldau.testing.broker import BrokerFailedError
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def node(tmp_path):
    made: list[NodeBroker] = []

    def make(*options: str, name: str = "data", **settings: str) -> NodeBroker:
        found = NodeBroker(tmp_path / name, *options, **settings)
        made.append(found)
        return found

    yield make
    for one in made:
        one.kill()


def create(node: NodeBroker, topic: str, partitions: int, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    wanted = NewTopic(topic, partitions, replicas)
    admin.create_topics([wanted])[topic].result(wait_seconds_max())


class Load:
    """Numbers that are produced with acks=all until it is stopped; remembers what was acked."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked: set[int] = set()
        self.failures: list[str] = []
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(wait_seconds_max() * 1000),
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(
                self._topic, str(number).encode(), on_delivery=self._acker(number)
            )
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(wait_seconds_max())

    def _acker(self, number: int) -> Callable[[object, object], None]:
        def acked(error: object, _: object) -> None:
            if error is None:
                self.acked.add(number)
            else:
                self.failures.append(str(error))

        return acked

    def goes_on(self, count: int = 100) -> None:
        wanted = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= wanted, "the load goes on")

    def stop(self) -> set[int]:
        self._stopping.set()
        self._thread.join()
        assert not self.failures
        return self.acked


def stored(bootstrap: str, topic: str, wanted: set[int]) -> set[int]:
    """What is read of it from the beginning, until all that is wanted was seen."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: set[int] = set()
    consumer.subscribe([topic])

    def all_seen() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            found.add(int(message.value() or b"-1"))
        return wanted <= found

    try:
        wait_until(all_seen, "all is read", describe=lambda: sorted(wanted - found)[:5])
    finally:
        consumer.close()
    return found


@pytest.mark.safety
def test_the_bootstrap_address_answers_and_nothing_is_lost_while_a_process_is_killed(node):
    one = node().start()
    create(one, "t", 4, 2)
    load = Load(one.bootstrap, "t")
    load.goes_on()
    # The first one leads the metadata, too.
    before = one.children()[1]
    os.kill(before, signal.SIGKILL)
    # Whichever process is there accepts at the address that they share.
    topics = AdminClient({"bootstrap.servers": one.bootstrap, "log_level": 0}).list_topics
    assert "t" in topics(timeout=wait_seconds_max()).topics
    wait_until(lambda: one.children().get(1, before) != before, "it is restarted")
    one.until_ready()
    load.goes_on()
    acked = load.stop()
    assert one.stop() == 0
    one.start()
    assert acked <= stored(one.bootstrap, "t", acked)


def test_health_and_metrics_of_the_node_are_those_of_all_its_processes(node):
    one = node().start()
    one.until_ready()
    assert one.json("/healthz") == {"status": "ok", "processes": {"1": "ok", "2": "ok"}}
    assert one.json("/healthz", process=2) == {"status": "ok"}
    text = one.get("/metrics")[1].decode()
    for family in ("moldau_build_info", "moldau_kafka_requests_total", "moldau_log_flush_seconds"):
        assert text.count(f"# TYPE {family} ") == 1
        assert f'{family}{{process="1"' in text.replace("_bucket", "")
        assert f'{family}{{process="2"' in text.replace("_bucket", "")
    assert 'moldau_build_info{process="2",version="' in text
    assert 'moldau_node_process_up{process="1"} 1' in text
    assert "process=" not in one.get("/metrics", process=1)[1].decode()
    paused = one.children()[2]
    os.kill(paused, signal.SIGSTOP)
    try:
        # Process 1 answers for the node, since the other accepts nothing.
        status, body = one.get("/readyz")
        assert (status, b"process 2: it does not respond" in body) == (503, True)
        assert one.get("/healthz")[0] == 503
        assert 'moldau_node_process_up{process="2"} 0' in one.get("/metrics")[1].decode()
        assert one.get("/healthz", process=1)[0] == 200
    finally:
        os.kill(paused, signal.SIGCONT)
    one.until_ready()


def is_refused(node: NodeBroker) -> bool:
    try:
        socket.create_connection((node.host, node.port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.safety
def test_without_its_supervisor_no_process_of_a_node_stays(node):
    one = node().start()
    processes = one.children()
    assert sorted(processes) == [1, 2]
    one.kill()
    wait_until(lambda: not any(map(is_alive, processes.values())), "all have ended")
    # Threads of a process that was killed may hold its sockets for a moment longer.
    wait_until(lambda: is_refused(one), "nothing listens any more")
    # The ports and the directories are free for the next start.
    one.start()
    assert sorted(one.children()) == [1, 2]


@pytest.mark.safety
def test_a_node_grows_from_a_broker_and_does_not_shrink_while_brokers_would_be_missing(node):
    one = node()
    one.processes = "1"
    one.start()
    assert one.json("/healthz") == {"status": "ok"}
    assert one.children() == {}
    create(one, "t", 1)
    load = Load(one.bootstrap, "t")
    load.goes_on(10)
    acked = load.stop()
    one.stop()
    one.processes = "2"
    one.start()
    assert acked <= stored(one.bootstrap, "t", acked)
    assert [broker["id"] for broker in one.json("/api/v1/topology")["brokers"]] == [1, 2]
    one.stop()
    one.processes = "1"
    with pytest.raises(BrokerFailedError, match="replicas of broker 2 in process-2 would be"):
        one.start()


def test_a_process_that_fails_for_good_stops_the_node_with_its_exit_code(node, tmp_path):
    one = node().start()
    broken = Path(one.data_dir, "process-2", "broker.json")
    one.stop()
    broken.write_text("{}")
    one.launch()
    process = one._process
    assert process is not None
    assert process.wait(wait_seconds_max()) == 74, one.output
    assert "process 2 exited with code 74: the node stops" in one.output
    one._process = None


def replicas_by_machine(node: NodeBroker) -> list[list[str]]:
    """The machines of each partition's replicas, as the cluster has them."""
    topology = node.json("/api/v1/topology")
    machine = {broker["id"]: broker["machine"] for broker in topology["brokers"]}
    return [
        [machine[broker] for broker in part["replicas"]]
        for topic in topology["topics"]
        for part in topic["partitions"]
        if len(part["replicas"]) > 1
    ]


@pytest.mark.safety
@pytest.mark.parametrize("count", [2, 3])
def test_a_whole_node_is_lost_and_comes_back_and_nothing_acknowledged_is_missing(node, count):
    """As many replicas as nodes, each node with two processes."""
    nodes = [node(name="a", MACHINE="a").start()]
    secret = nodes[0].data_dir / "cluster.secret"
    for name in "bc"[: count - 1]:
        join = ("--join-addr", nodes[0].http_address)
        further = node(*join, name=name, MACHINE=name, CLUSTER_SECRET_FILE=str(secret))
        nodes.append(further.start())
    first, lost = nodes[0], nodes[-1]
    create(first, "t", 6, count)
    bootstrap = ",".join(one.bootstrap for one in nodes)
    load = Load(bootstrap, "t")
    load.goes_on()
    found = replicas_by_machine(first)
    assert len(found) >= 6
    assert all(len(set(machines)) == len(machines) for machines in found)
    lost.kill()
    if count == 3:
        # Two of three nodes have a majority of everything.
        load.goes_on(500)
    lost.start()
    lost.until_ready()
    load.goes_on(500)
    acked = load.stop()
    assert acked <= stored(bootstrap, "t", acked)
    assert [one.stop() for one in nodes] == [0] * count


def test_an_initial_member_is_a_node(node, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a text that only these two nodes of a test know")
    secret.chmod(0o600)
    one, two = (node(name=name, MACHINE=name, CLUSTER_SECRET_FILE=str(secret)) for name in "ab")
    for each in (one, two):
        each._options = ("--set", f"initial_members={one.http_address},{two.http_address}")
        each.launch()
    for each in (one, two):
        each.wait_ready()
    brokers = two.json("/api/v1/topology")["brokers"]
    assert len(brokers) == 4
    assert sorted(broker["machine"] for broker in brokers) == ["a", "a", "b", "b"]
    # All return to it, and to nothing else.
    two.restart()
    assert len(two.json("/api/v1/topology")["brokers"]) == 4


def test_a_broker_that_is_removed_takes_no_other_process_with_it(node):
    one = node().start()
    (second,) = [pid for number, pid in one.children().items() if number == 2]
    one.ask("/api/v1/cluster/leave", {"broker": 2})
    wait_until(lambda: not is_alive(second), "it has ended", describe=lambda: one.output)
    one.until_ready()
    assert one.json("/healthz")["processes"] == {"1": "ok"}
    assert sorted(one.children()) == [1]
    assert one.stop() == 0
    # The directory is not missed, whether it is named or not.
    one.start()
    assert sorted(one.children()) == [1]
    assert "process 2 is not started" in one.output
    one.stop()
    one.processes = "1"
    one.start()
    assert one.json("/healthz") == {"status": "ok"}
