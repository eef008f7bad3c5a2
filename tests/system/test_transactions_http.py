"""Transactions over HTTP on a cluster of three brokers: listed and aborted by any of them."""

from collections.abc import Iterator
from typing import Any

import pytest
from transaction_client import Client

from http_client import ask
from moldau.client.wire.connection import KafkaConnection
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

pytestmark = pytest.mark.system

TOPIC = "paid"
STATE = "__transaction_state"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"TRANSACTION__STATE_PARTITIONS": "3"}) as started:
        address = started.brokers[1].http_address
        body = {"name": TOPIC, "partitions": 1}
        assert ask(address, "POST", "/api/v1/topics", body).status == 201
        yield started


def connect(broker: ClusterBroker) -> KafkaConnection:
    host, _, port = broker.address.rpartition(":")
    return KafkaConnection(host, int(port), client_id="tx", timeout=wait_seconds_max())


def coordinated(cluster: Cluster, name: str, attempt: Any) -> Any:
    """By the coordinator."""
    with connect(cluster.coordinator(STATE, name)) as connection:
        return attempt(Client(connection, TOPIC))


def begin(cluster: Cluster, name: str) -> Any:
    """A transaction with one record, which stays open."""
    producer = coordinated(cluster, name, lambda client: client.init(name, timeout_ms=600_000))
    assert coordinated(cluster, name, lambda client: client.add(producer)) == 0
    with connect(cluster.leader(TOPIC, 0)) as connection:
        assert Client(connection, TOPIC).produce(producer, b"v") == 0
    return producer


def listed(cluster: Cluster, broker: int, query: str = "") -> Any:
    reply = ask(cluster.brokers[broker].http_address, "GET", f"/api/v1/transactions{query}")
    assert reply.status == 200, reply.body
    assert reply.body["silent"] == []
    return reply.body


def test_any_broker_lists_and_aborts_transactions(cluster: Cluster) -> None:
    first = cluster.brokers[1].http_address
    assert listed(cluster, 1)["transactions"] == []
    unknown = ask(first, "POST", "/api/v1/transactions/none/abort", {})
    assert (unknown.status, unknown.body["error"]) == (404, "TRANSACTIONAL_ID_NOT_FOUND")
    with connect(cluster.brokers[1]) as connection:
        request = FindCoordinatorRequest(key="a", key_type=1)
        wait_until(
            lambda: connection.request(request, FindCoordinatorResponse, 3).error_code == 0,
            "coordinators run",
        )
    names = ["app/a", "app/b", "app/c", "app/d"]
    producers = {name: begin(cluster, name) for name in names}
    for broker in (1, 2, 3):
        found = listed(cluster, broker)["transactions"]
        assert [each["transactional_id"] for each in found] == names
        for each in found:
            assert (each["state"], each["is_hanging"]) == ("Ongoing", False)
            assert each["partitions"] == [{"topic": TOPIC, "partition": 0}]
            assert (each["timeout_ms"], each["partition_count"]) == (600_000, 1)
            assert 0 <= each["age_ms"] < 600_000
            assert each["producer_id"] == producers[each["transactional_id"]].id
            name = each["transactional_id"]
            assert each["coordinator"] == cluster.coordinator(STATE, name).number
    page = listed(cluster, 2, "?limit=3")
    assert (len(page["transactions"]), page["next"]) == (3, "app/c")
    rest = listed(cluster, 2, "?after=app/c&search=APP&state=Ongoing")
    assert [each["transactional_id"] for each in rest["transactions"]] == ["app/d"]

    for broker, name in zip((1, 2, 3), names, strict=False):
        address = cluster.brokers[broker].http_address
        done = ask(address, "POST", f"/api/v1/transactions/{name}/abort", {})
        assert done.status == 200, done.body
        assert (done.body["state"], done.body["is_aborted"]) == ("Ongoing", True)
        again = ask(address, "POST", f"/api/v1/transactions/{name}/abort", {})
        assert (again.status, again.body["is_aborted"]) == (200, False)
        fenced = coordinated(
            cluster,
            name,
            lambda client, name=name: client.end(producers[name]).error_code,
        )
        assert fenced != 0
    left = listed(cluster, 1, "?state=Ongoing")["transactions"]
    assert [each["transactional_id"] for each in left] == ["app/d"]
    assert coordinated(cluster, "app/d", lambda c: c.end(producers["app/d"]).error_code) == 0

    def committed() -> list[bytes]:
        with connect(cluster.leader(TOPIC, 0)) as connection:
            return Client(connection, TOPIC).committed()

    wait_until(lambda: committed() == [b"v"], "only what was committed is seen")


@pytest.mark.safety
def test_a_transaction_that_no_coordinator_lost_is_not_hanging(cluster: Cluster) -> None:
    address = cluster.brokers[3].http_address
    body = {"topic": TOPIC, "partition": 0, "producer_id": 1, "producer_epoch": 0}
    refused = ask(address, "POST", "/api/v1/transactions/hanging", body)
    assert (refused.status, refused.body["error"]) == (404, "RESOURCE_NOT_FOUND")
    for query in ("state=Open", "limit=0", "x=1"):
        reply = ask(address, "GET", f"/api/v1/transactions?{query}")
        assert reply.status == 400
    assert ask(address, "POST", "/api/v1/transactions/x/abort", {"y": 1}).status == 400
