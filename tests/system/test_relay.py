"""Any broker serves what only another one can: with the rights of whoever asked."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from secured_broker import admin_of, admin_token, put_users

from http_client import ask
from moldau.client.sasl import Sasl
from moldau.client.security import Security
from moldau.client.wire.security_admin import AclRule, SecurityAdmin
from moldau.security.acl import Operation, PatternType, Permission, ResourceType
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

PASSWORD = "planted-password-9"


def put_topic(cluster: Cluster, name: str, *values: str) -> None:
    first = cluster.brokers[1]
    first.ask("/api/v1/topics", {"name": name, "partitions": 1, "replication_factor": 3})
    cluster.leader(name, 0)
    if values:
        body = {"records": [{"value": each} for each in values]}
        wait_until(lambda: tried(first, f"/api/v1/topics/{name}/records", body), "it is stored")


def tried(broker: ClusterBroker, path: str, body: Any = None) -> Any:
    """None while there is no leader."""
    try:
        return broker.ask(path, body)
    except OSError:
        return None


@contextmanager
def asking(broker: ClusterBroker, path: str, **headers: str) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection(broker.http_address, timeout=wait_seconds_max())) as connection:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()


def event(response: HTTPResponse) -> dict[str, str]:
    """The next one that is not a comment; empty at the end."""
    found: dict[str, str] = {}
    while line := response.readline().decode():
        if line == "\n" and found:
            return found
        name, _, value = line.rstrip("\n").partition(": ")
        if name and not line.startswith(":"):
            found[name] = value
    return found


def test_every_broker_shows_and_sets_the_levels_of_every_other(moldau_cluster: Cluster) -> None:
    brokers = list(moldau_cluster.brokers)
    for asked in brokers:
        for other in brokers:
            path = f"/api/v1/brokers/{other.number}/log-levels"
            level = "warning" if asked.number % 2 else "debug"
            changed = ask(asked.http_address, "POST", path, {"levels": {"raft": level}})
            assert changed.status == 200, changed.body
            shown = ask(asked.http_address, "GET", path)
            assert (shown.status, shown.body["broker"]) == (200, other.number)
            (raft,) = (each for each in shown.body["levels"] if each["component"] == "raft")
            assert raft["level"] == level


def test_a_partition_is_followed_through_any_broker_until_its_leader_dies(
    moldau_cluster: Cluster,
) -> None:
    cluster = moldau_cluster
    put_topic(cluster, "followed", "first")
    path = "/api/v1/topics/followed/tail?offset=earliest"
    leader = cluster.leader("followed", 0)
    one, two = (broker for broker in cluster.brokers if broker is not leader)
    with (
        asking(one, path) as first,
        asking(two, path) as second,
        asking(leader, path) as direct,
    ):
        for response in (first, second, direct):
            assert response.status == 200
            assert str(response.getheader("content-type")).startswith("text/event-stream")
            assert event(response) == {"retry": "1000"}
            assert json.loads(event(response)["data"])["value"] == "first"
        body = {"records": [{"value": "second"}]}
        assert tried(one, "/api/v1/topics/followed/records", body) is not None
        for response in (first, second, direct):
            assert json.loads(event(response)["data"])["value"] == "second"
        leader.kill()
        for response in (first, second):
            last = event(response)
            assert last["event"] == "error"
            problem = json.loads(last["data"])
            assert (problem["status"], problem["error"]) == (503, "BROKER_NOT_AVAILABLE")
            assert response.read() == b""
    # Whoever comes again gets on with the new leader, through either broker.
    for broker in (one, two):

        def resumed(broker: ClusterBroker = broker) -> Any:
            headers = {"last-event-id": "0"}
            with asking(broker, "/api/v1/topics/followed/tail", **headers) as response:
                if response.status != 200:
                    return None
                event(response)
                return json.loads(event(response)["data"])

        assert wait_until(resumed, "there is a new leader")["value"] == "second"


def test_a_large_page_arrives_whole_through_every_broker(moldau_cluster: Cluster) -> None:
    put_topic(moldau_cluster, "large", *("x" * 1000 for _ in range(900)))
    path = "/api/v1/topics/large/records?limit=900"
    pages = [ask(broker.http_address, "GET", path).body for broker in moldau_cluster.brokers]
    assert pages[0] == pages[1] == pages[2]
    assert [len(record["value"]) for record in pages[0]["records"]] == [1000] * 900


def basic(user: str) -> dict[str, str]:
    pair = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    return {"authorization": f"Basic {pair}"}


def status(broker: ClusterBroker, path: str, headers: dict[str, str]) -> int:
    with asking(broker, path, **headers) as response:
        return response.status


def grant_read(cluster: Cluster, user: str, topic: str) -> None:
    first = cluster.brokers[1]
    login = Sasl(mechanism="PLAIN", username="moldau-admin", password=admin_token(first))
    rule = AclRule(
        ResourceType.TOPIC,
        topic,
        PatternType.LITERAL,
        f"User:{user}",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    with SecurityAdmin(first.bootstrap, Security(sasl=login)) as admin:
        admin.create_acls([rule])


def test_the_rights_of_the_client_hold_through_every_broker() -> None:
    settings = {"KAFKA__SASL_MECHANISMS": "PLAIN", "HTTP__AUTHENTICATION": "users"}
    with Cluster(3, settings=settings) as cluster:
        put_users(admin_of(cluster.brokers[1]), {"reader": PASSWORD})
        for name in ("allowed", "forbidden"):
            put_topic(cluster, name, "stored")
        grant_read(cluster, "reader", "allowed")
        for broker in cluster.brokers:
            check_rights(broker, cluster.brokers[broker.number % 3 + 1])


def check_rights(broker: ClusterBroker, other: ClusterBroker) -> None:
    """`broker` is asked; the levels of its log are those of `other`."""
    allowed, forbidden = ("/api/v1/topics/allowed", "/api/v1/topics/forbidden")
    reader = basic("reader")
    wait_until(lambda: status(broker, f"{allowed}/records", reader) == 200, "the rule is known")
    for kind in ("records", "tail"):
        assert status(broker, f"{allowed}/{kind}", reader) == 200
        assert status(broker, f"{forbidden}/{kind}", reader) == 403
        assert status(broker, f"{allowed}/{kind}", {}) == 401
    levels = f"/api/v1/brokers/{other.number}/log-levels"
    administrator = {"authorization": f"Bearer {admin_token(broker)}"}
    assert status(broker, levels, administrator) == 200
    assert status(broker, levels, reader) == 403
    # It was denied by the other broker, which says who asked, and from where.
    lines = [json.loads(line) for line in (other.data_dir / "audit.log").read_text().splitlines()]
    denied = lines[-1]
    assert (denied["principal"], denied["host"]) == ("User:reader", "127.0.0.1")
