"""Topics and brokers as a real broker shows them over HTTP."""

from typing import Any

import confluent_kafka
import pytest

from http_client import ask
from moldau.client.wire.client import KafkaClient
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def test_topics_come_in_pages_that_lead_to_each_other(moldau_session_broker):
    broker = moldau_session_broker
    names = [f"http-page-{number}" for number in range(6)]
    with KafkaClient(broker.bootstrap) as client:
        for name in names:
            client.create_topic(name, partitions=2)
    seen = []
    after = "http-page-"
    for _ in range(3):
        reply = ask(broker.http_address, "GET", f"/api/v1/topics?limit=2&after={after}")
        assert reply.status == 200
        seen += [topic["name"] for topic in reply.body["topics"]]
        assert len(reply.body["topics"]) == 2
        assert reply.body["next"] == seen[-1] or reply.body["next"] is None
        after = reply.body["next"]
        if len(seen) > 4 or after is None:
            break
    assert seen == names
    (one,) = ask(broker.http_address, "GET", "/api/v1/topics?limit=1&after=http-page-0").body[
        "topics"
    ]
    assert one.pop("id")
    assert one == {
        "name": "http-page-1",
        "internal": False,
        "partitions": 2,
        "replication_factor": 1,
        "leaderless": 0,
        "under_replicated": 0,
    }


def test_a_search_keeps_the_names_that_contain_it(moldau_session_broker):
    broker = moldau_session_broker
    with KafkaClient(broker.bootstrap) as client:
        for name in ("find-Orders-a", "find-orders-b", "find-other"):
            client.create_topic(name)
    path = "/api/v1/topics?search=D-oRDers"
    found = ask(broker.http_address, "GET", f"{path}&limit=1").body
    assert [topic["name"] for topic in found["topics"]] == ["find-Orders-a"]
    rest = ask(broker.http_address, "GET", f"{path}&after={found['next']}").body
    assert [topic["name"] for topic in rest["topics"]] == ["find-orders-b"]
    assert rest["next"] is None
    assert ask(broker.http_address, "GET", "/api/v1/topics?search=nothing-like-it").body == {
        "topics": [],
        "next": None,
    }


def test_topics_are_listed_with_their_figures(moldau_session_broker):
    broker, name = moldau_session_broker, "http-figures"
    with KafkaClient(broker.bootstrap) as client:
        configs: dict[str, str | None] = {
            "retention.ms": "3600000",
            "cleanup.policy": "compact,delete",
        }
        client.create_topic(name, partitions=3, configs=configs)
    path = f"/api/v1/topics?search={name}&stats=true"

    def figures() -> dict[str, Any]:
        (topic,) = ask(broker.http_address, "GET", path).body["topics"]
        found: dict[str, Any] = topic
        return found

    before = figures()
    assert (before["records"], before["log_bytes"]) == (0, 0)
    assert (before["retention_ms"], before["retention_bytes"]) == (3600000, -1)
    assert before["cleanup_policy"] == "compact,delete"
    body = {"records": [{"key": "k", "value": "x" * 100} for _ in range(12)]}

    def has_rates() -> bool:
        assert (
            ask(broker.http_address, "POST", f"/api/v1/topics/{name}/records", body).status == 200
        )
        found = figures()
        return bool(found["records_in"] and found["bytes_in"] > found["records_in"])

    wait_until(has_rates, "somebody has looked for some seconds")
    after = figures()
    assert after["records"] > 0
    assert after["records"] % 12 == 0
    assert after["log_bytes"] > after["records"] * 50


def test_the_last_page_leads_nowhere(moldau_session_broker, moldau_topic):
    everything = ask(moldau_session_broker.http_address, "GET", "/api/v1/topics?limit=1000").body
    assert everything["next"] is None
    names = [topic["name"] for topic in everything["topics"]]
    assert moldau_topic in names
    assert names == sorted(names)
    rest = ask(moldau_session_broker.http_address, "GET", f"/api/v1/topics?after={names[-1]}")
    assert rest.body == {"topics": [], "next": None}


def test_internal_topics_are_shown_on_request(moldau_broker):
    with KafkaClient(moldau_broker.bootstrap) as client:
        client.create_topic("mine", partitions=1)
    # The first who looks for a coordinator creates it.
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": moldau_broker.bootstrap, "group.id": "g"}
    )
    consumer.commit(offsets=[confluent_kafka.TopicPartition("mine", 0, 0)], asynchronous=False)
    consumer.close()
    address = moldau_broker.http_address
    shown = ask(address, "GET", "/api/v1/topics").body["topics"]
    assert [topic["name"] for topic in shown] == ["mine"]
    shown = ask(address, "GET", "/api/v1/topics?internal=true").body["topics"]
    assert [topic["name"] for topic in shown] == ["__consumer_offsets", "mine"]


def test_a_topic_shows_its_settings_and_how_far_its_partitions_reach(moldau_session_broker):
    broker = moldau_session_broker
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("http-one", partitions=3, configs={"retention.ms": "60000"})
    reply = ask(broker.http_address, "GET", "/api/v1/topics/http-one?limit=2")
    assert reply.status == 200
    settings = {setting["name"]: setting for setting in reply.body["configs"]}
    assert settings["retention.ms"] == {
        "name": "retention.ms",
        "value": "60000",
        "source": "dynamic_topic_config",
        "type": "long",
        "read_only": False,
    }
    assert settings["cleanup.policy"]["source"] == "default_config"
    assert (reply.body["partition_count"], reply.body["next"]) == (3, 1)
    first = reply.body["partitions"][0]
    assert first.pop("leader_epoch") >= 0
    assert first.pop("log_bytes") >= 0
    assert first == {
        "partition": 0,
        "leader": 1,
        "replicas": [1],
        "in_sync": [1],
        "adding": [],
        "removing": [],
        "start_offset": 0,
        "end_offset": 0,
    }
    rest = ask(broker.http_address, "GET", "/api/v1/topics/http-one?after=1").body
    assert [one["partition"] for one in rest["partitions"]] == [2]
    assert rest["next"] is None


def test_brokers_are_listed_and_shown_with_their_settings(moldau_session_broker):
    address = moldau_session_broker.http_address
    (one,) = ask(address, "GET", "/api/v1/brokers").body["brokers"]
    assert (one["id"], one["alive"], one["is_me"]) == (1, True, True)
    shown = ask(address, "GET", "/api/v1/brokers/1").body
    assert shown["broker"]["kafka"] == one["kafka"]
    assert "log.retention.ms" in {setting["name"] for setting in shown["configs"]}
    assert ask(address, "GET", "/api/v1/brokers?after=1").body == {"brokers": [], "next": None}


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/v1/topics/no-such", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/api/v1/topics/%ff%00", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/api/v1/topics?limit=0", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?limit=1001", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?limit=ten", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?limit=%C2%B2", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?limit=" + "9" * 5000, 400, "INVALID_REQUEST"),
        ("/api/v1/topics?limit=1&limit=2", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?internal=perhaps", 400, "INVALID_REQUEST"),
        ("/api/v1/topics?page=2", 400, "INVALID_REQUEST"),
        ("/api/v1/topics/x?after=-2", 400, "INVALID_REQUEST"),
        ("/api/v1/brokers/9", 404, "BROKER_ID_NOT_REGISTERED"),
        ("/api/v1/brokers/one", 404, "BROKER_ID_NOT_REGISTERED"),
        ("/api/v1/brokers/%D9%A1", 404, "BROKER_ID_NOT_REGISTERED"),
        ("/api/v1/brokers/" + "9" * 400, 404, "BROKER_ID_NOT_REGISTERED"),
        # More digits than Python reads, which was a defect once.
        ("/api/v1/brokers/" + "9" * 5000, 404, "BROKER_ID_NOT_REGISTERED"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_refused_with_its_reason(moldau_session_broker, path, status, error):
    reply = ask(moldau_session_broker.http_address, "GET", path)
    assert (reply.status, reply.body["error"]) == (status, error)
    assert reply.body["detail"]
