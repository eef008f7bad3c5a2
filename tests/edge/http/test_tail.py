"""Following a partition over HTTP: every record once, from where the client was."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse

import pytest

from http_client import ask


class Stream:
    """An answer that goes on, event by event."""

    def __init__(self, response: HTTPResponse) -> None:
        self.response = response
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert self.block() == ["retry: 1000"]

    def block(self) -> list[str]:
        """The lines up to the next empty one; nothing at the end."""
        lines: list[str] = []
        while (line := self.response.readline().decode().rstrip("\n")) or not lines:
            if not line and self.response.isclosed():
                break
            lines.append(line)
        return lines

    def event(self) -> dict[str, str]:
        """The next that is not a comment."""
        while (lines := self.block())[0].startswith(":"):
            pass
        return dict(line.split(": ", 1) for line in lines)

    def record(self) -> dict:
        event = self.event()
        record = json.loads(event["data"])
        assert event["id"] == str(record["offset"])
        return record


@contextmanager
def following(broker, topic: str, query: str = "", **headers: str) -> Iterator[Stream]:
    connection = HTTPConnection(broker.http_address, timeout=60)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", f"/api/v1/topics/{topic}/tail{query}", headers=sent)
        yield Stream(connection.getresponse())
    finally:
        connection.close()


def store(broker, topic: str, *values: str) -> None:
    body = {"records": [{"key": value[0], "value": value} for value in values]}
    assert ask(broker.http_address, "POST", f"/api/v1/topics/{topic}/records", body).status == 200


def test_records_come_as_they_are_stored(moldau_session_broker, moldau_topic):
    broker, topic = moldau_session_broker, moldau_topic
    store(broker, topic, "before")
    with following(broker, topic) as stream:
        for number in range(3):
            store(broker, topic, f"after-{number}")
            record = stream.record()
            assert (record["offset"], record["value"]) == (1 + number, f"after-{number}")


def test_it_can_begin_anywhere_and_go_on_where_it_was(moldau_session_broker, moldau_topic):
    broker, topic = moldau_session_broker, moldau_topic
    store(broker, topic, *(f"v{number}" for number in range(250)))
    with following(broker, topic, "?offset=earliest") as stream:
        assert [stream.record()["offset"] for _ in range(250)] == list(range(250))
    with following(broker, topic, "?offset=earliest", last_event_id="247") as stream:
        assert [stream.record()["value"] for _ in range(2)] == ["v248", "v249"]
        store(broker, topic, "v250")
        assert stream.record()["value"] == "v250"


def test_a_filter_lets_through_what_fits(moldau_session_broker, moldau_topic):
    broker, topic = moldau_session_broker, moldau_topic
    with following(broker, topic, "?key=b&value_encoding=base64") as stream:
        store(broker, topic, "a1", "b1", "a2")
        store(broker, topic, "a3", "b2")
        assert [stream.record()["value"] for _ in range(2)] == ["YjE=", "YjI="]


def test_a_topic_that_is_deleted_ends_the_stream_with_its_reason(moldau_session_broker):
    broker = moldau_session_broker
    address = broker.http_address
    assert ask(address, "POST", "/api/v1/topics", {"name": "http-end"}).status == 201
    with following(broker, "http-end") as stream:
        assert ask(address, "DELETE", "/api/v1/topics/http-end").status == 200
        event = stream.event()
        assert event["event"] == "error"
        assert json.loads(event["data"])["error"] in (
            "UNKNOWN_TOPIC_OR_PARTITION",
            "NOT_LEADER_OR_FOLLOWER",
        )
        assert stream.response.read() == b""


def test_who_goes_makes_room_for_others(moldau_session_broker, moldau_topic):
    """More than may follow at once, one after another; and their fetches are not left behind."""
    broker, topic = moldau_session_broker, moldau_topic
    for _ in range(70):
        deadline = time.monotonic() + 60
        path = f"/api/v1/topics/{topic}/tail"
        while ask(broker.http_address, "HEAD", path).status == 503:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with following(broker, topic):
            pass


def test_too_many_at_once_are_told_to_come_later(moldau_broker):
    address = moldau_broker.http_address
    ask(address, "POST", "/api/v1/topics", {"name": "t"})
    path = "/api/v1/topics/t/tail"
    connections = []
    try:
        for _ in range(64):
            connection = HTTPConnection(address, timeout=60)
            connections.append(connection)
            connection.request("GET", path)
            Stream(connection.getresponse())
        reply = ask(address, "GET", path)
        assert (reply.status, reply.body["error"]) == (503, "THROTTLING_QUOTA_EXCEEDED")
        # Those who follow do not keep the broker from stopping.
        assert moldau_broker.stop() == 0
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    ("query", "headers", "status", "error"),
    [
        ("?offset=99", {}, 400, "OFFSET_OUT_OF_RANGE"),
        ("?limit=5", {}, 400, "INVALID_REQUEST"),
        ("?partition=7", {}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("", {"last-event-id": "x"}, 400, "INVALID_REQUEST"),
        ("", {"last-event-id": "9" * 19}, 400, "INVALID_REQUEST"),
        ("", {"last-event-id": "99"}, 400, "OFFSET_OUT_OF_RANGE"),
    ],
)
def test_a_place_that_is_none_is_an_error_as_any(
    moldau_session_broker, moldau_topic, query, headers, status, error
):
    connection = HTTPConnection(moldau_session_broker.http_address, timeout=60)
    connection.request("GET", f"/api/v1/topics/{moldau_topic}/tail{query}", headers=headers)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]) == (status, error)
    connection.close()


def test_the_head_alone_does_not_follow(moldau_session_broker, moldau_topic):
    reply = ask(moldau_session_broker.http_address, "HEAD", f"/api/v1/topics/{moldau_topic}/tail")
    assert (reply.status, reply.body) == (200, None)
