"""Faults on purpose, in a real cluster under its supervisor, as its own brokers see them."""

import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from supervised_cluster import SupervisedCluster, supervised_cluster

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

TOPIC = "orders"
PARTITIONS = 6
DELAY_MS = 1000


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedCluster]:
    with supervised_cluster(tmp_path_factory.mktemp("play") / "cluster") as made:
        with KafkaClient(made.kafka(1)) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        yield made


@pytest.fixture
def cluster(started: SupervisedCluster) -> Iterator[SupervisedCluster]:
    """All is well, before and after."""
    started.until_well()
    yield started
    for member in started.state.brokers:
        if member.state == "ready":
            started.play(member.id, "heal", {})
            break
    started.until_well()


def leaders(cluster: SupervisedCluster, asked: int) -> dict[int, int]:
    """By partition, as this broker knows them."""
    topology = cluster.get(asked, f"/api/v1/topology?topic={TOPIC}")
    (topic,) = topology["topics"]
    return {each["partition"]: each["leader"] for each in topic["partitions"]}


def store(cluster: SupervisedCluster, asked: int, partition: int) -> float:
    """Milliseconds until it is acknowledged."""
    before = time.monotonic()
    body = {"records": [{"partition": partition, "value": "x"}]}
    reply = ask(cluster.http(asked), "POST", f"/api/v1/topics/{TOPIC}/records", body)
    assert reply.status == 200, reply.body
    return (time.monotonic() - before) * 1000


def led_by(cluster: SupervisedCluster, broker: int) -> int:
    """A partition that it leads; by preference each leads two."""

    def found() -> int | None:
        return next((part for part, one in leaders(cluster, 1).items() if one == broker), None)

    wait_until(lambda: found() is not None, f"broker {broker} leads a partition")
    partition = found()
    assert partition is not None
    return partition


def others_lead(cluster: SupervisedCluster, broker: int, asked: int) -> bool:
    return not {broker, -1} & set(leaders(cluster, asked).values())


def readiness(cluster: SupervisedCluster, broker: int) -> int:
    """The status that load balancers get."""
    connection = HTTPConnection(cluster.http(broker), timeout=wait_seconds_max())
    with closing(connection):
        connection.request("GET", "/readyz")
        return connection.getresponse().status


@pytest.mark.safety
def test_a_killed_broker_loses_its_leaderships_and_returns(cluster: SupervisedCluster) -> None:
    partition = led_by(cluster, 2)
    cluster.play(1, "brokers/2", {"action": "kill"})
    wait_until(lambda: others_lead(cluster, 2, 1), "the others lead what it led")
    assert cluster.states(3) == {1: "ready", 2: "killed", 3: "ready"}
    store(cluster, 1, partition)
    assert "kill broker 2: requested by User:ANONYMOUS at 127.0.0.1" in cluster.log("supervisor")
    cluster.play(3, "brokers/2", {"action": "restart"})
    cluster.until_well()


@pytest.mark.safety
def test_a_broker_answers_before_it_is_killed_itself(cluster: SupervisedCluster) -> None:
    before = cluster.state.member(1).pid
    cluster.play(1, "brokers/1", {"action": "kill"})
    wait_until(lambda: cluster.states(2)[1] == "killed", "it is killed")
    cluster.play(2, "heal", {})
    wait_until(lambda: cluster.states(2)[1] == "ready", "it is back")
    assert cluster.state.member(1).pid != before


def test_a_paused_broker_is_replaced_and_goes_on_as_the_same_process(
    cluster: SupervisedCluster,
) -> None:
    led_by(cluster, 3)
    before = cluster.state.member(3).pid
    board = cluster.play(2, "brokers/3", {"action": "pause", "seconds": 120})
    (paused,) = [each for each in board["brokers"] if each["state"] == "paused"]
    assert (paused["id"], 0 < paused["resumes_in_ms"] <= 120_000) == (3, True)
    wait_until(lambda: others_lead(cluster, 3, 1), "the others lead what it led")
    cluster.play(1, "brokers/3", {"action": "resume"})
    cluster.until_well()
    assert cluster.state.member(3).pid == before


def test_a_broker_that_is_cut_off_runs_and_leads_nothing(cluster: SupervisedCluster) -> None:
    led_by(cluster, 3)
    for other in (1, 2):
        cluster.play(1, "links", {"a": 3, "b": other, "is_cut": True})
    wait_until(lambda: others_lead(cluster, 3, 1), "the majority leads what it led")
    wait_until(lambda: not cluster.live(1)[3]["alive"], "the others do not reach it")
    # Its process is well, and it knows that it is alone.
    assert cluster.states(3)[3] == "ready"
    assert ask(cluster.http(3), "GET", "/healthz").status == 200
    wait_until(lambda: readiness(cluster, 3) == 503, "it is not ready")
    store(cluster, 1, 0)
    for other in (1, 2):
        cluster.play(2, "links", {"a": other, "b": 3, "is_cut": False})
    cluster.until_well()
    assert readiness(cluster, 3) == 200


@pytest.mark.safety
def test_a_cut_link_outlives_a_restart_of_its_ends(cluster: SupervisedCluster) -> None:
    for other in (1, 2):
        cluster.play(1, "links", {"a": 3, "b": other, "is_cut": True})
    wait_until(lambda: not cluster.live(1)[3]["alive"], "the others do not reach it")
    before = cluster.state.member(3).pid
    cluster.play(1, "brokers/3", {"action": "kill"})
    cluster.play(1, "brokers/3", {"action": "restart"})
    wait_until(lambda: cluster.state.member(3).pid not in (before, None), "its process runs")
    time.sleep(1)
    assert not cluster.live(1)[3]["alive"]


def test_flushes_of_a_slow_disk_take_longer(cluster: SupervisedCluster) -> None:
    mine = led_by(cluster, 1)
    usual = flush_ms(cluster, mine)
    cluster.play(2, "disks", {"broker": 1, "delay_ms": DELAY_MS})

    def is_slow() -> bool:
        return flush_ms(cluster, mine) > 3 * usual

    wait_until(is_slow, "its flushes are slower", describe=lambda: (usual, flush_ms(cluster, mine)))
    # A commit waits for the faster two of three.
    assert min(store(cluster, 1, mine) for _ in range(10)) < DELAY_MS
    cluster.play(2, "disks", {"broker": 2, "delay_ms": DELAY_MS})
    wait_until(lambda: store(cluster, 1, mine) >= DELAY_MS, "two slow disks are felt")
    cluster.play(3, "disks", {"broker": 2, "delay_ms": 0})
    cluster.play(3, "disks", {"broker": 1, "delay_ms": 0})

    def is_fast() -> bool:
        return flush_ms(cluster, mine) < max(3 * usual, 300)

    wait_until(is_fast, "its flushes are fast again")


def flush_ms(cluster: SupervisedCluster, partition: int) -> float:
    """Of 99 % of the flushes of broker 1, while it stores records."""

    def measured() -> float | None:
        store(cluster, 1, partition)
        found: float | None = cluster.live(1)[1]["flush_ms"]
        return found

    wait_until(lambda: measured() is not None, "flushes were measured")
    return measured() or 0.01


def test_wrong_requests_are_refused_with_the_next_step(cluster: SupervisedCluster) -> None:
    for path, body, status in (
        ("brokers/9", {"action": "kill"}, 404),
        ("brokers/x", {"action": "kill"}, 404),
        ("brokers/1", {"action": "stop"}, 400),
        ("brokers/1", {"action": "pause", "seconds": 121}, 400),
        ("brokers/1", {"action": "pause", "seconds": 0}, 400),
        ("brokers/1", {"action": "resume"}, 400),
        ("brokers/1", {"action": "kill", "pid": 1}, 400),
        ("links", {"a": 1, "b": 1, "is_cut": True}, 400),
        ("links", {"a": 1, "b": 9, "is_cut": True}, 404),
        ("disks", {"broker": 1, "delay_ms": 5001}, 400),
        ("disks", {"broker": 9, "delay_ms": 1}, 404),
        ("heal", [], 400),
    ):
        reply = ask(cluster.http(1), "POST", f"/api/v1/play/{path}", body)
        assert reply.status == status, (path, body, reply.body)
        assert reply.body["hint"]
    assert ask(cluster.http(1), "GET", "/api/v1/play?x=1").status == 400
    assert set(cluster.states(1).values()) == {"ready"}
    assert not (Path(cluster.directory) / "play.json").exists()
