"""Searches and live views of a topic on three brokers, asked of one of them, over the loss of a
leader."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from http_client import ask
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

PARTITIONS = 6
TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running


def make_topic(cluster: Cluster, name: str) -> None:
    wanted = {"name": name, "partitions": PARTITIONS, "replication_factor": 3}
    assert ask(cluster.brokers[1].http_address, "POST", "/api/v1/topics", wanted).status == 201
    for partition in range(PARTITIONS):
        cluster.leader(name, partition)


def send(producer: Producer, topic: str, numbers: range) -> None:
    for number in numbers:
        producer.produce(
            topic,
            json.dumps({"number": number, "text": "x" * 200}),
            f"key-{number}",
            number % PARTITIONS,
            timestamp=TIME + number,
            headers={"parity": str(number % 2)},
        )
        producer.poll(0)
    producer.flush()


def page(broker: ClusterBroker, topic: str, query: str, cursor: str | None = None) -> Any:
    going_on = "" if cursor is None else f"&cursor={quote(cursor)}"
    reply = ask(broker.http_address, "GET", f"/api/v1/topics/{topic}/search?{query}{going_on}")
    if reply.status == 503:
        return None
    assert reply.status == 200, reply.body
    return reply.body


def search(broker: ClusterBroker, topic: str, query: str) -> tuple[list[int], int]:
    """The numbers found, and how many messages were searched."""
    found, searched, cursor = [], 0, None
    while True:
        got = page(broker, topic, query, cursor)
        if got is None:
            continue
        found += [json.loads(one["value"])["number"] for one in got["records"]]
        searched += got["searched"]["records"]
        cursor = got["cursor"]
        if cursor is None:
            assert got["left_records"] == 0
            return found, searched


@pytest.mark.safety
def test_a_search_finds_everything_once_in_order_also_when_a_leader_is_lost(
    cluster: Cluster,
) -> None:
    make_topic(cluster, "searched")
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 5}
    producer = Producer({**settings, "compression.type": "lz4"})
    send(producer, "searched", range(3000))
    everything = list(range(3000))
    for broker in cluster.brokers:
        assert search(broker, "searched", "direction=oldest&limit=331") == (everything, 3000)
    first = cluster.brokers[1]
    assert search(first, "searched", "limit=1000") == (everything[::-1], 3000)
    assert search(first, "searched", "json=number=1234") == ([1234], 3000)
    assert search(first, "searched", "key=key-77&direction=oldest") == ([77], 3000)
    assert search(first, "searched", "contains=nothing+like+it") == ([], 3000)
    odd = search(first, "searched", "header=parity:1&partition=1&partition=3&limit=500")[0]
    assert odd == [number for number in everything if number % 6 in (1, 3)][::-1]
    assert search(first, "searched", f"time={TIME + 2990}&direction=oldest")[0] == everything[2990:]
    assert search(first, "searched", f"time={TIME + 9}")[0] == everything[9::-1]
    assert search(first, "searched", "offset=1&direction=newest")[0] == everything[11::-1]

    # What comes later, and who leads, make no difference to a search that began.
    begun = page(first, "searched", "limit=500")
    found = [json.loads(one["value"])["number"] for one in begun["records"]]
    send(producer, "searched", range(3000, 3100))
    other = next(
        leader
        for leader in (cluster.leader("searched", index) for index in range(PARTITIONS))
        if leader is not first
    )
    other.kill()
    cursor = begun["cursor"]
    while cursor is not None:
        got = page(first, "searched", "limit=500", cursor)
        if got is not None:
            found += [json.loads(one["value"])["number"] for one in got["records"]]
            cursor = got["cursor"]
    assert found == everything[::-1]
    other.start()
    cluster.wait_ready()


def test_only_what_is_committed_is_found(cluster: Cluster) -> None:
    make_topic(cluster, "transactions")
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "transactional.id": "searched"}
    )
    producer.init_transactions()
    for values, ends in (
        (["a", "b"], producer.commit_transaction),
        (["c"], producer.abort_transaction),
    ):
        producer.begin_transaction()
        for value in values:
            producer.produce("transactions", value, partition=0)
        producer.flush()
        ends()
    producer.begin_transaction()
    producer.produce("transactions", "open", partition=0)
    producer.produce("transactions", None, "key", partition=1)
    producer.flush()
    broker = cluster.brokers[2]

    def found(query: str) -> list[tuple[int, str | None, str | None]]:
        records = page(broker, "transactions", f"direction=oldest&partition=0&{query}")["records"]
        return [(one["offset"], one["value"], one.get("kind")) for one in records]

    wait_until(lambda: len(found("markers=true")) == 4, "the transactions have ended")
    assert found("") == [(0, "a", None), (1, "b", None)]
    with_markers = [(0, "a", None), (1, "b", None), (2, None, "commit"), (4, None, "abort")]
    assert found("markers=true") == with_markers
    assert found("markers=true&contains=a") == [(0, "a", None)]
    assert found("contains=c") == []
    newest = page(broker, "transactions", "markers=true")["records"]
    assert [one["offset"] for one in newest] == [4, 2, 1, 0]
    producer.commit_transaction()
    wait_until(lambda: len(found("")) == 3, "the last transaction has ended")
    (tombstone,) = page(broker, "transactions", "partition=1")["records"]
    assert (tombstone["key"], tombstone["value"], tombstone["kind"]) == ("key", None, "tombstone")


def test_long_values_are_cut(cluster: Cluster) -> None:
    make_topic(cluster, "cut")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("cut", "ä" * 50_000, "k" * 20)
    producer.flush()
    path = "/api/v1/topics/cut/search"
    (one,) = page(cluster.brokers[1], "cut", "")["records"]
    assert (one["value"], one["value_bytes"], one["is_cut"]) == ("ä" * 32 * 1024, 100_000, True)
    (one,) = page(cluster.brokers[1], "cut", "value_max=5")["records"]
    assert (one["value"], one["key"]) == ("ää", "k" * 5)
    (one,) = page(cluster.brokers[1], "cut", "value_max=100000")["records"]
    assert (one["value"], one.get("is_cut")) == ("ä" * 50_000, None)
    assert ask(cluster.brokers[1].http_address, "GET", f"{path}?value_max=2000000").status == 400


def test_parameters_are_checked(cluster: Cluster) -> None:
    make_topic(cluster, "checked")
    address = cluster.brokers[2].http_address
    path = "/api/v1/topics/checked/search"
    for query in (
        "direction=up",
        "offset=1&time=1",
        "limit=0",
        "json=a..b",
        "json=nonsense(",
        "json=amount>5",
        "partition=x",
        "cursor=AAAA",
        "value_max=-1",
        "nix=1",
        "markers=1",
    ):
        reply = ask(address, "GET", f"{path}?{query}")
        assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST"), query
    assert ask(address, "GET", f"{path}?partition=6").status == 404
    assert ask(address, "GET", "/api/v1/topics/nix/search").status == 404
    assert ask(address, "GET", "/api/v1/topics/nix/live").status == 404
    assert ask(address, "GET", "/api/v1/topics/checked/live?partition=6").status == 404
    assert ask(address, "HEAD", "/api/v1/topics/checked/live").status == 200
    assert ask(address, "GET", path).body == {
        "records": [],
        "searched": {"records": 0, "bytes": 0, "ranges": [], "gone": 0},
        "unreadable": [],
        "left_records": 0,
        "cursor": None,
    }


class View:
    """A live view, read by a thread."""

    def __init__(self, broker: ClusterBroker, topic: str, query: str = "") -> None:
        self.seen: dict[int, list[int]] = {}
        self.skipped = 0
        self.error: Any = None
        self.events: list[int] = []
        self._connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
        self._connection.request("GET", f"/api/v1/topics/{topic}/live{query}")
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.seen.values())

    def _read(self) -> None:
        is_error = False
        while line := self._response.readline().decode():
            is_error = is_error or line.startswith("event: error")
            if not line.startswith("data: "):
                continue
            data = json.loads(line.removeprefix("data: "))
            if is_error:
                self.error = data
                return
            self.events.append(len(data["records"]))
            for message in data["records"]:
                self.seen.setdefault(message["partition"], []).append(message["offset"])
            self.skipped += data["skipped"]

    def end(self) -> None:
        self._thread.join(wait_seconds_max())
        assert not self._thread.is_alive()
        self._connection.close()


@pytest.mark.safety
def test_a_live_view_has_every_message_or_counts_it_also_when_a_leader_is_lost(
    cluster: Cluster,
) -> None:
    make_topic(cluster, "watched")
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "acks": "all"}
    producer = Producer({**settings, "enable.idempotence": True})
    send(producer, "watched", range(60))
    first = cluster.brokers[1]
    view = View(first, "watched")
    some = View(first, "watched", "?header=parity:1")
    send(producer, "watched", range(60, 120))
    wait_until(lambda: view.count == 60 and some.count == 30, "what is new is shown")
    assert view.skipped == some.skipped == 0
    assert all(offsets == list(range(10, 20)) for offsets in view.seen.values())
    other = next(
        leader
        for leader in (cluster.leader("watched", index) for index in range(PARTITIONS))
        if leader is not first
    )
    other.kill()
    send(producer, "watched", range(120, 180))
    wait_until(lambda: view.count + view.skipped == 120, "nothing is lost between two leaders")
    assert view.skipped == 0
    assert all(offsets == list(range(10, 30)) for offsets in view.seen.values())
    other.start()
    cluster.wait_ready()
    # More than anyone reads: what is left out is counted.
    send(producer, "watched", range(180, 30_180))
    wait_until(lambda: view.count + view.skipped == 30_120, "all is shown or counted")
    assert view.skipped > 0
    assert max(view.events) <= 200
    for offsets in view.seen.values():
        assert offsets == sorted(set(offsets))
    assert ask(first.http_address, "DELETE", "/api/v1/topics/watched").status == 200
    for each in (view, some):
        each.end()
        assert each.error["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_broker_that_stops_ends_its_views(cluster: Cluster) -> None:
    make_topic(cluster, "ending")
    broker = cluster.brokers[3]
    view = View(broker, "ending")
    broker.stop()
    view.end()
    assert view.error["error"] == "BROKER_NOT_AVAILABLE"
    broker.start()
    cluster.wait_ready()
