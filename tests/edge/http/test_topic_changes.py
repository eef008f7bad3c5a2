"""Topics changed over HTTP: by a broker alone, and by one of three that does not lead them."""

from typing import Any

import confluent_kafka
import pytest

from http_client import Reply, ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def send(bootstrap: str, topic: str, counts: dict[int, int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for partition, count in counts.items():
        for _ in range(count):
            producer.produce(topic, b"value", partition=partition)
    assert producer.flush(wait_seconds_max()) == 0


def settings(configs: list[dict[str, Any]]) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["value"], one["source"]) for one in configs}


def refused(reply: Reply) -> tuple[int, str]:
    assert reply.body["hint"]
    return reply.status, reply.body["error"]


def test_settings_are_changed_previewed_and_set_back(moldau_session_broker, moldau_topic):
    address = moldau_session_broker.http_address
    path = f"/api/v1/topics/{moldau_topic}"
    wanted = {"configs": {"retention.ms": "60000", "cleanup.policy": "compact,delete"}}
    reply = ask(address, "PATCH", f"{path}/configs", {**wanted, "validate_only": True})
    assert reply.status == 200
    assert settings(reply.body["configs"])["retention.ms"] == ("60000", "dynamic_topic_config")
    shown = ask(address, "GET", path).body["configs"]
    assert settings(shown)["retention.ms"][1] == "default_config"

    reply = ask(address, "PATCH", f"{path}/configs", wanted)
    assert reply.body["configs"] == ask(address, "GET", path).body["configs"]
    assert settings(reply.body["configs"])["cleanup.policy"][0] == "compact,delete"

    reply = ask(address, "PATCH", f"{path}/configs", {"configs": {"retention.ms": None}})
    assert settings(reply.body["configs"])["retention.ms"][1] == "default_config"
    assert settings(reply.body["configs"])["cleanup.policy"][0] == "compact,delete"
    for body, error in (
        ({"configs": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ({"configs": {"retention": "1"}}, "INVALID_CONFIG"),
        ({"configs": {"retention.ms": 1}}, "INVALID_REQUEST"),
        ({}, "INVALID_REQUEST"),
    ):
        assert refused(ask(address, "PATCH", f"{path}/configs", body)) == (400, error)


def test_partitions_are_added_and_never_removed(moldau_session_broker, moldau_topic):
    address = moldau_session_broker.http_address
    path = f"/api/v1/topics/{moldau_topic}"
    count = ask(address, "GET", path).body["partition_count"]
    reply = ask(address, "POST", f"{path}/partitions", {"count": count + 2, "validate_only": True})
    assert (reply.status, reply.body["partition_count"]) == (200, count + 2)
    assert ask(address, "GET", path).body["partition_count"] == count
    reply = ask(address, "POST", f"{path}/partitions", {"count": count + 2})
    assert [one["leader"] for one in reply.body["partitions"]] == [1] * (count + 2)
    fewer = ask(address, "POST", f"{path}/partitions", {"count": 1})
    assert refused(fewer) == (400, "INVALID_PARTITIONS")
    assert "more than now" in fewer.body["hint"]


def test_records_are_trimmed_and_each_partition_that_cannot_be_is_named(moldau_session_broker):
    broker, address = moldau_session_broker, moldau_session_broker.http_address
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("http-trim", partitions=3)
        client.create_topic("http-kept", partitions=1, configs={"cleanup.policy": "compact"})
    send(broker.bootstrap, "http-trim", {0: 5, 1: 3})
    path = "/api/v1/topics/http-trim/trim"
    reply = ask(address, "POST", path, {"partitions": {"0": 2, "1": None, "2": 0}})
    assert reply.body == {
        "partitions": [
            {"partition": 0, "start_offset": 2},
            {"partition": 1, "start_offset": 3},
            {"partition": 2, "start_offset": 0},
        ]
    }
    partly = ask(address, "POST", path, {"partitions": {"0": 9, "1": 3}})
    assert refused(partly) == (400, "OFFSET_OUT_OF_RANGE")
    assert [(one["partition"], one["error"]) for one in partly.body["partitions"]] == [
        (0, "OFFSET_OUT_OF_RANGE"),
        (1, None),
    ]
    assert partly.body["detail"].startswith("1 of 2 partitions: ")
    kept = ask(address, "POST", "/api/v1/topics/http-kept/trim", {"partitions": {"0": None}})
    assert refused(kept) == (400, "POLICY_VIOLATION")
    for body, status, error in (
        ({"partitions": {}}, 400, "INVALID_REQUEST"),
        ({"partitions": {"x": 1}}, 400, "INVALID_REQUEST"),
        ({"partitions": {"0": -1}}, 400, "INVALID_REQUEST"),
        ({"partitions": {"7": 1}}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        assert refused(ask(address, "POST", path, body)) == (status, error)


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("PATCH", "configs", {"configs": {}}),
        ("POST", "partitions", {"count": 3}),
        ("POST", "trim", {"partitions": {"0": None}}),
        ("POST", "elect", {}),
        ("POST", "replicas", {"partitions": {"0": [1]}}),
    ],
)
def test_there_is_nothing_to_change_in_a_topic_that_does_not_exist(
    moldau_session_broker, method, rest, body
):
    path = f"/api/v1/topics/no-such-topic/{rest}"
    reply = ask(moldau_session_broker.http_address, method, path, body)
    assert refused(reply) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


def stranger(cluster: Cluster, *topics: str) -> str:
    """The address of a broker that leads no partition of these."""
    leaders = {cluster.leader(topic, 0).number for topic in topics}
    return next(one.http_address for one in cluster.brokers if one.number not in leaders)


def test_a_broker_that_leads_nothing_of_it_changes_a_topic(moldau_cluster):
    cluster = moldau_cluster
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic("remote", partitions=1, replication_factor=2)
    send(cluster.bootstrap, "remote", {0: 5})
    address, path = stranger(cluster, "remote"), "/api/v1/topics/remote"
    replicas = ask(address, "GET", path).body["partitions"][0]["replicas"]

    trimmed = ask(address, "POST", f"{path}/trim", {"partitions": {"0": 2}})
    assert trimmed.body == {"partitions": [{"partition": 0, "start_offset": 2}]}
    beyond = ask(address, "POST", f"{path}/trim", {"partitions": {"0": 9}})
    assert refused(beyond) == (400, "OFFSET_OUT_OF_RANGE")
    changed = ask(address, "PATCH", f"{path}/configs", {"configs": {"retention.ms": "7"}})
    assert settings(changed.body["configs"])["retention.ms"][0] == "7"

    # Its replicas in another order: another broker is the preferred leader, and does not lead yet.
    body = {"partitions": {"0": replicas[::-1]}}
    moved = ask(address, "POST", f"{path}/replicas", body)
    assert moved.status == 200
    (one,) = moved.body["partitions"]
    assert one["partition"] == 0
    elected = ask(address, "POST", f"{path}/elect", {})
    assert elected.status == 200
    wait_until(
        lambda: ask(address, "GET", path).body["partitions"][0]["leader"] == replicas[1],
        "the preferred replica leads",
    )
    again = ask(address, "POST", f"{path}/elect", {"partitions": [0]})
    assert again.body == {"partitions": [{"partition": 0, "leader": replicas[1]}]}
    ask(address, "POST", f"{path}/replicas", {"partitions": {"0": replicas}})
    everywhere = ask(address, "POST", "/api/v1/cluster/elect")
    assert (everywhere.status, everywhere.body["failed"]) == (200, 0)
    wait_until(
        lambda: ask(address, "GET", path).body["partitions"][0]["leader"] == replicas[0],
        "the first replica leads again",
    )

    nothing = ask(address, "POST", f"{path}/replicas", {"partitions": {"0": None}})
    assert refused(nothing) == (409, "NO_REASSIGNMENT_IN_PROGRESS")
    other = ({1, 2, 3} - set(replicas)).pop()
    ask(address, "POST", f"{path}/replicas", {"partitions": {"0": [other]}})
    wait_until(
        lambda: ask(address, "GET", path).body["partitions"][0]["replicas"] == [other],
        "the partition has moved",
    )
    nowhere = ask(address, "POST", f"{path}/replicas", {"partitions": {"0": [9]}})
    assert refused(nowhere) == (400, "INVALID_REPLICA_ASSIGNMENT")
