"""What topics may set, and who consumes them, whichever broker is asked."""

import time

import confluent_kafka
import pytest

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def commit(bootstrap: str, group: str, topic: str, positions: dict[int, int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, *item) for item in positions.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def send(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(wait_seconds_max()) == 0


def test_every_setting_is_explained(moldau_session_broker, moldau_topic):
    address = moldau_session_broker.http_address
    found = {
        one["name"]: one for one in ask(address, "GET", "/api/v1/topic-settings").body["settings"]
    }
    shown = ask(address, "GET", f"/api/v1/topics/{moldau_topic}").body["configs"]
    # A topic that sets nothing has the defaults.
    assert {one["name"]: one["value"] for one in shown} == {
        name: one["default"] for name, one in found.items()
    }
    assert all(one["doc"].endswith(".") for one in found.values())
    assert found["cleanup.policy"]["values"] == ["compact", "delete"]
    assert found["preallocate"]["values"] == ["true", "false"]
    units = {"retention.ms": "ms", "segment.bytes": "bytes", "moldau.flush": None}
    assert {name: found[name]["unit"] for name in units} == units
    assert [name for name, one in found.items() if one["read_only"]] == ["moldau.restoring"]
    idle = {name for name, one in found.items() if not one["has_effect"]}
    assert "preallocate" in idle
    assert "retention.ms" not in idle
    assert idle == {name for name, one in found.items() if "without effect" in one["doc"]}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_only_subscribes_is_named_without_positions(moldau_session_broker, protocol):
    broker, topic, group = moldau_session_broker, f"watched-{protocol}", f"watcher-{protocol}"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions=2)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        wait_until(is_assigned, "the member has its partitions")
        (one,) = ask(broker.http_address, "GET", f"/api/v1/topics/{topic}/groups").body["groups"]
    finally:
        consumer.close()
    assert (one["group"], one["state"], one["member_count"]) == (group, "Stable", 1)
    assert (one["lag"], one["lag_seconds"], one["partitions"]) == (None, None, [])


def test_a_group_says_how_long_ago_it_was_at_the_end(moldau_session_broker):
    broker, topic = moldau_session_broker, "behind"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions=2)
    hour_ago = int(time.time() - 3600) * 1000
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(2):
        producer.produce(topic, b"value", partition=partition, timestamp=hour_ago)
    assert producer.flush(wait_seconds_max()) == 0
    commit(broker.bootstrap, "late", topic, {0: 1, 1: 0})
    commit(broker.bootstrap, "prompt", topic, {0: 1, 1: 1})
    found = ask(broker.http_address, "GET", f"/api/v1/topics/{topic}/groups").body["groups"]
    late, prompt = found
    assert (late["lag"], prompt["lag"], prompt["lag_seconds"]) == (1, 0, 0.0)
    assert late["lag_seconds"] >= 3600


def test_any_broker_knows_who_consumes_a_topic_and_how_far_behind(moldau_cluster):
    cluster = moldau_cluster
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic("spread", partitions=3, replication_factor=1)
        client.create_topic("other", partitions=1)
    for partition in range(3):
        send(cluster.bootstrap, "spread", partition, 4)
    names = ["g1", "g2", "g3", "g4"]
    for name in names:
        commit(cluster.bootstrap, name, "spread", {0: 4, 2: 1})
    commit(cluster.bootstrap, "elsewhere", "other", {0: 0})
    for broker in cluster.brokers:
        reply = ask(broker.http_address, "GET", "/api/v1/topics/spread/groups")
        assert (reply.status, reply.body["silent"], reply.body["next"]) == (200, [], None)
        assert [one["group"] for one in reply.body["groups"]] == names
        behind = [one.pop("lag_seconds") for one in reply.body["groups"]]
        assert all(one is None or one >= 0 for one in behind)
        assert reply.body["groups"][0] == {
            "group": "g1",
            "state": "Empty",
            "member_count": 0,
            "lag": 3,
            "partitions": [
                {"partition": 0, "committed": 4, "end_offset": 4, "lag": 0},
                {"partition": 2, "committed": 1, "end_offset": 4, "lag": 3},
            ],
        }
        page = ask(broker.http_address, "GET", "/api/v1/topics/spread/groups?limit=3").body
        assert ([one["group"] for one in page["groups"]], page["next"]) == (names[:3], "g3")
        rest = ask(broker.http_address, "GET", "/api/v1/topics/spread/groups?after=g3").body
        assert ([one["group"] for one in rest["groups"]], rest["next"]) == (["g4"], None)
    missing = ask(cluster.brokers[1].http_address, "GET", "/api/v1/topics/nowhere/groups")
    assert missing.status == 404
