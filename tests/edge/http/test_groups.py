"""Groups as real brokers show them over HTTP, whichever is asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def send(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(wait_seconds_max()) == 0


@contextmanager
def member(bootstrap: str, group: str, topic: str, **extra: str) -> Iterator[None]:
    """A member that has its assignment; it commits nothing."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **extra,
        }
    )
    try:
        consumer.subscribe([topic])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        wait_until(is_assigned, "the member has its partitions")
        yield
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, topic: str, positions: dict[int, int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, *item) for item in positions.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_shows_its_members_and_its_lag(moldau_session_broker, protocol):
    broker, topic, group = moldau_session_broker, f"http-lag-{protocol}", f"team/{protocol}"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions=2)
    send(broker.bootstrap, topic, 0, 5)
    send(broker.bootstrap, topic, 1, 3)
    commit(broker.bootstrap, group, topic, {0: 2, 1: 3})
    with member(broker.bootstrap, group, topic, **{"group.protocol": protocol}):
        reply = ask(broker.http_address, "GET", f"/api/v1/groups/{group}")
    assert reply.status == 200
    shown = reply.body
    assert (shown["group"], shown["type"], shown["state"]) == (group, protocol, "Stable")
    assert (shown["lag"], shown["member_count"], shown["coordinator"]) == (3, 1, 1)
    (one,) = shown["members"]
    assert one["client_id"] == "reader"
    assert one["topics"] == [topic]
    assert one["assigned"] == [{"topic": topic, "partitions": [0, 1]}]
    positions = [
        (at["topic"], at["partition"], at["committed"], at["end_offset"], at["lag"])
        for at in shown["offsets"]
    ]
    assert positions == [(topic, 0, 2, 5, 3), (topic, 1, 3, 3, 0)]
    behind, at_the_end = (at["lag_seconds"] for at in shown["offsets"])
    assert behind > 0
    assert at_the_end == 0
    assert shown["may"] == ["READ", "DELETE", "DESCRIBE"]
    (listed_one,) = ask(
        broker.http_address, "GET", f"/api/v1/groups?lag=true&search=EAM/{protocol}"
    ).body["groups"]
    assert (listed_one["group"], listed_one["lag"]) == (group, 3)
    assert listed_one["lag_seconds"] >= behind
    listed = ask(broker.http_address, "GET", "/api/v1/groups?limit=1000").body
    assert listed["silent"] == []
    kinds = {entry["group"]: entry["type"] for entry in listed["groups"]}
    assert kinds[group] == protocol
    assert all("lag" not in entry for entry in listed["groups"])


def test_positions_and_groups_come_in_pages(moldau_session_broker):
    broker, topic = moldau_session_broker, "http-group-pages"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions=3)
    for group in ("page-a", "page-b", "page-c"):
        commit(broker.bootstrap, group, topic, {0: 0, 1: 0, 2: 0})
    first = ask(broker.http_address, "GET", "/api/v1/groups?limit=2&after=page-").body
    assert [entry["group"] for entry in first["groups"]] == ["page-a", "page-b"]
    second = ask(broker.http_address, "GET", f"/api/v1/groups?limit=1&after={first['next']}").body
    assert [entry["group"] for entry in second["groups"]] == ["page-c"]
    shown = ask(broker.http_address, "GET", "/api/v1/groups/page-a?limit=2").body
    assert [at["partition"] for at in shown["offsets"]] == [0, 1]
    assert shown["next"] == f"{topic}/1"
    rest = ask(broker.http_address, "GET", f"/api/v1/groups/page-a?after={shown['next']}").body
    assert ([at["partition"] for at in rest["offsets"]], rest["next"]) == ([2], None)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/v1/groups/nobody", 404, "GROUP_ID_NOT_FOUND"),
        ("/api/v1/groups/", 404, "GROUP_ID_NOT_FOUND"),
        ("/api/v1/groups/x?after=nowhere", 400, "INVALID_REQUEST"),
        ("/api/v1/groups?limit=-1", 400, "INVALID_REQUEST"),
        ("/api/v1/groups?state=Stable", 400, "INVALID_REQUEST"),
    ],
)
def test_what_does_not_fit_is_refused(moldau_session_broker, path, status, error):
    reply = ask(moldau_session_broker.http_address, "GET", path)
    assert (reply.status, reply.body["error"]) == (status, error)


def test_there_is_no_group_where_no_offsets_were_ever_stored(moldau_broker):
    reply = ask(moldau_broker.http_address, "GET", "/api/v1/groups/g")
    assert (reply.status, reply.body["error"]) == (404, "GROUP_ID_NOT_FOUND")
    # And asking has created nothing.
    topics = ask(moldau_broker.http_address, "GET", "/api/v1/topics?internal=true").body["topics"]
    assert topics == []


def test_every_broker_of_a_cluster_returns_the_same(moldau_cluster):
    cluster = moldau_cluster
    bootstrap = cluster.bootstrap
    with KafkaClient(bootstrap) as client:
        client.create_topic("spread", partitions=6, replication_factor=1)
    for partition in range(6):
        send(bootstrap, "spread", partition, partition)
    for group in ("g1", "g2", "g3", "g4"):
        commit(bootstrap, group, "spread", dict.fromkeys(range(6), 0))
    addresses = [broker.http_address for broker in cluster.brokers]
    coordinators = set()
    for address in addresses:
        shown = ask(address, "GET", "/api/v1/topics/spread").body
        assert {one["replicas"][0] for one in shown["partitions"]} == {1, 2, 3}
        assert [one["end_offset"] for one in shown["partitions"]] == [0, 1, 2, 3, 4, 5]
        listed = ask(address, "GET", "/api/v1/groups").body
        assert listed["silent"] == []
        assert [entry["group"] for entry in listed["groups"]] == ["g1", "g2", "g3", "g4"]
        for entry in listed["groups"]:
            path = f"/api/v1/groups/{entry['group']}"
            reply = ask(address, "GET", path)
            assert (reply.status, reply.body["lag"]) == (200, 15)
            coordinators.add(reply.body["coordinator"])
    # No broker coordinates all of them, so some replies were relayed.
    assert len(coordinators) > 1
