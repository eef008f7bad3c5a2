"""The overview over HTTP: one request, and a stream of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from types import SimpleNamespace
from typing import Any

import pytest
from open_sessions import session_over

from http_client import ask
from moldau.api.entrance import Visit
from moldau.api.overview.sampler import Shown
from moldau.client.wire.client import KafkaClient
from moldau.edge.http import overview
from moldau.edge.http.overview import STREAMS_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

PATH = "/api/v1/overview"


@contextmanager
def following(broker: Any) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
    try:
        connection.request("GET", f"{PATH}/stream")
        yield connection.getresponse()
    finally:
        connection.close()


def block(response: HTTPResponse) -> dict[str, str]:
    lines = []
    while line := response.readline().decode().rstrip("\n"):
        lines.append(line)
    return dict(line.split(": ", 1) for line in lines)


def test_one_broker_shows_itself(moldau_session_broker):
    broker = moldau_session_broker
    reply = ask(broker.http_address, "GET", PATH)
    assert reply.status == 200
    found = reply.body
    assert found["answered_by"] == found["controller"] == 1
    (me,) = found["brokers"]
    assert (me["id"], me["alive"], me["silent"], me["state"]) == (1, True, False, "active")
    assert me["resident_bytes"] > 1_000_000
    assert me["disk_total_bytes"] > me["disk_free_bytes"] > 0
    assert me["connections"] >= 1
    assert found["history"]["at_ms"]
    assert found["counts"]["leaderless"] == found["counts"]["under_replicated"] == 0


def test_a_stream_has_history_first_and_then_what_is_new(moldau_session_broker):
    broker = moldau_session_broker
    with following(broker) as response:
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert block(response) == {"retry": "1000"}
        first = block(response)
        assert json.loads(first["data"])["history"] is not None
        # Else the topics of a test before might come in one line with this one.
        first = block(response)
        with KafkaClient(broker.bootstrap) as client:
            client.create_topic("overview-made")
        made: list[dict[str, Any]] = []
        # Other tests use this broker, too: their events may come before.
        for _ in range(60):
            event = block(response)
            found = json.loads(event["data"])
            assert found["history"] is None
            made += [each for each in found["events"] if each["topic"] == "overview-made"]
            if made:
                break
        assert int(event["id"]) > int(first["id"])
        assert [(each["kind"], each["text"]) for each in made] == [
            ("topic_created", "topic overview-made was created, with 1 partition")
        ]
        # Nobody gets it again.
        assert "overview-made" not in str(json.loads(block(response)["data"])["events"])


def test_the_lag_of_groups_is_in_it(moldau_session_broker):
    import confluent_kafka

    broker, topic = moldau_session_broker, "overview-lag"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic)
    body = {"records": [{"value": str(number)} for number in range(9)]}
    assert ask(broker.http_address, "POST", f"/api/v1/topics/{topic}/records", body).status == 200
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "overview-group"}
    )
    at = [confluent_kafka.TopicPartition(topic, 0, 2)]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()

    def is_shown() -> bool:
        found = ask(broker.http_address, "GET", PATH).body
        return any(
            (each["group"], each["lag"]) == ("overview-group", 7) and each["lag_seconds"] >= 0
            for each in found["lag"]["groups"]
        )

    wait_until(is_shown, "the lag is shown")


def test_of_many_who_come_at_once_no_more_than_the_limit_follow(moldau_broker):
    """And none of them keeps the broker from stopping."""
    address = moldau_broker.http_address
    connections = [HTTPConnection(address, timeout=wait_seconds_max()) for _ in range(80)]
    try:
        for connection in connections:
            connection.connect()
        for connection in connections:
            connection.request("GET", f"{PATH}/stream")
        responses = [connection.getresponse() for connection in connections]
        followed = [response for response in responses if response.status == 200]
        refused = [response for response in responses if response.status == 503]
        assert (len(followed), len(refused)) == (STREAMS_MAX, 80 - STREAMS_MAX)
        assert {json.loads(one.read())["error"] for one in refused} == {"THROTTLING_QUOTA_EXCEEDED"}
        assert moldau_broker.stop() == 0
        for response in followed:
            *_, last = response.read().decode().strip().split("\n\n")
            assert last.startswith("event: error\n")
            assert '"status":503' in last
    finally:
        for connection in connections:
            connection.close()


def test_who_goes_makes_room_for_others(moldau_session_broker):
    for _ in range(STREAMS_MAX + 6):
        wait_until(
            lambda: ask(moldau_session_broker.http_address, "HEAD", f"{PATH}/stream").status != 503,
            "there is room again",
        )
        with following(moldau_session_broker) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", [f"{PATH}?x=1", f"{PATH}/stream?history=no"])
def test_what_does_not_fit_is_refused(moldau_session_broker, path):
    reply = ask(moldau_session_broker.http_address, "GET", path)
    assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")


# ---- how a stream ends


class FakeOverview:
    def __init__(self, *shown: Shown | RefusedError) -> None:
        self._shown = iter(shown)

    async def after(self, shown: Shown, sees: Any) -> Shown:
        found = next(self._shown)
        if isinstance(found, RefusedError):
            raise found
        return found


async def events_of(*shown: Shown | RefusedError, **login: Any) -> list[bytes]:
    clock = SimpleNamespace(monotonic=lambda: 2.0, wall_ms=lambda: 2000)
    visit = Visit(session_over(overview=FakeOverview(*shown), clock=clock), **login)
    return [each async for each in overview._events(visit, Shown(1, 0, b"{}"))]


async def test_a_stream_ends_when_the_token_of_its_client_expires():
    _, first, error = await events_of(Shown(2, 0, b"{}"), expires_at_ms=1500)
    assert first == b"id: 1\ndata: {}\n\n"
    assert error.startswith(b"event: error\n")
    assert b'"status":401' in error


async def test_a_stream_ends_when_the_broker_stops():
    stopping = RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")
    *_, second, error = await events_of(Shown(2, 0, b"{}"), stopping)
    assert second.startswith(b"id: 2\n")
    assert b'"status":503' in error
