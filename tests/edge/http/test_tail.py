"""Following a partition over HTTP: every record once, from where the client was."""

import asyncio
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
from moldau.api.quotas import ON_STEP
from moldau.api.stored_user import StoredUser
from moldau.data.record_reader import ReadPage
from moldau.edge.http import event_streams, tail
from moldau.edge.http.record_json import RecordSelection
from moldau.edge.http.tail import TAILS_MAX
from moldau.metadata.security import User
from moldau.model.ids import Offset, TimestampMs, TopicId
from moldau.records.record import Record
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


class Stream:
    """An answer that goes on, event by event."""

    def __init__(self, response: HTTPResponse) -> None:
        self.response = response
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.getheader("x-accel-buffering") == "no"
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

    def record(self) -> Any:
        event = self.event()
        record = json.loads(event["data"])
        assert event["id"] == str(record["offset"])
        return record


@contextmanager
def following(broker, topic: str, query: str = "", **headers: str) -> Iterator[Stream]:
    connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
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
    path = f"/api/v1/topics/{topic}/tail"
    for _ in range(70):
        wait_until(
            lambda: ask(broker.http_address, "HEAD", path).status != 503, "there is room again"
        )
        with following(broker, topic):
            pass


def test_of_many_who_come_at_once_no_more_than_the_limit_follow(moldau_broker):
    """All ask before the first is answered; and none of them keeps the broker from stopping."""
    address = moldau_broker.http_address
    ask(address, "POST", "/api/v1/topics", {"name": "t"})
    path = "/api/v1/topics/t/tail"
    connections = [HTTPConnection(address, timeout=wait_seconds_max()) for _ in range(90)]
    try:
        for connection in connections:
            connection.connect()
        for connection in connections:
            connection.request("GET", path)
        responses = [connection.getresponse() for connection in connections]
        followed = [response for response in responses if response.status == 200]
        refused = [response for response in responses if response.status == 503]
        assert (len(followed), len(refused)) == (TAILS_MAX, 90 - TAILS_MAX)
        assert {json.loads(one.read())["error"] for one in refused} == {"THROTTLING_QUOTA_EXCEEDED"}
        streams = [Stream(response) for response in followed]
        assert moldau_broker.stop() == 0
        for stream in streams:
            event = stream.event()
            assert event["event"] == "error"
            # Another may lead already, where there is another.
            assert json.loads(event["data"])["status"] == 503
            assert stream.response.read() == b""
    finally:
        for connection in connections:
            connection.close()


def shown_record(offset: int) -> Record:
    return Record(Offset(offset), TimestampMs(0), b"k", b"v", [])


class FakeBroker:
    """One topic, and pages as a test wants them."""

    def __init__(self, pages) -> None:
        self.topic_id = TopicId(b"first")
        self.now = 0.0
        self.fetch = self
        self.clock = SimpleNamespace(
            monotonic=lambda: self.now, wall_ms=lambda: int(self.now * 1000)
        )
        self.image = SimpleNamespace(topic=lambda _: SimpleNamespace(topic_id=self.topic_id))
        script = iter(pages)

        async def read_page(*_, wait_ms_max, **__) -> ReadPage:
            records, seconds, then = next(script)
            self.now += seconds
            then(self)
            return ReadPage(
                records=records, next_offset=9, start_offset=0, end_offset=9, bytes_decoded=0
            )

        self.read_page = read_page


def events_of(monkeypatch, broker, count: int, **login: Any) -> list[bytes]:
    """The first so many, of one who follows from the start."""
    monkeypatch.setattr("moldau.api.guarded.records.read_page", broker.read_page)
    visit = Visit(session_over(image=broker.image, clock=broker.clock), **login)
    place = tail._Subscription(visit, "t", TopicId(b"first"), 0, RecordSelection())
    nothing = ReadPage(records=[], next_offset=0, start_offset=0, end_offset=0, bytes_decoded=0)

    async def collect() -> list[bytes]:
        found = []
        async for event in tail.Tails(lambda: None)._events(place, nothing):
            found.append(event)
            if len(found) == count:
                break
        return found

    return asyncio.run(collect())


def nothing_more(_) -> None:
    pass


def test_a_comment_comes_also_while_a_filter_leaves_out_all_that_is_stored(monkeypatch):
    quiet: Any = ([], 3.0, nothing_more)
    broker = FakeBroker([quiet, quiet, quiet, ([shown_record(1)], 1.0, nothing_more)])
    _, comment, record = events_of(monkeypatch, broker, 3)
    assert comment == b":\n\n"
    assert record.startswith(b"id: 1\ndata: {")


def test_a_stream_ends_when_the_token_of_its_client_expires(monkeypatch):
    pages: Any = [([shown_record(number)], 1.0, nothing_more) for number in range(9)]
    _, first, error = events_of(monkeypatch, FakeBroker(pages), 4, expires_at_ms=1500)
    assert first.startswith(b"id: 0\n")
    assert error.startswith(b"event: error\n")
    assert b'"status":401' in error


@pytest.mark.parametrize("after", [{}, {"alice": User("alice", {}, created=2)}])
def test_a_stream_ends_when_the_user_of_its_client_is_deleted(monkeypatch, after):
    users = {"alice": User("alice", {}, created=1)}

    def delete(_) -> None:
        nonlocal users
        users = after

    pages: Any = [([shown_record(0)], 1.0, nothing_more), ([shown_record(1)], 1.0, delete)]
    alice = StoredUser(lambda: users, "alice")
    _, first, error = events_of(monkeypatch, FakeBroker(pages), 4, user=alice)
    assert first.startswith(b"id: 0\n")
    assert b'"status":401' in error


def test_another_topic_of_the_same_name_is_not_followed(monkeypatch):
    def recreate(broker) -> None:
        broker.topic_id = TopicId(b"second")

    broker = FakeBroker([([shown_record(0)], 1.0, recreate)])
    _, record, error = events_of(monkeypatch, broker, 3)
    assert record.startswith(b"id: 0")
    assert error.startswith(b"event: error")
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in error


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
    connection = HTTPConnection(moldau_session_broker.http_address, timeout=wait_seconds_max())
    connection.request("GET", f"/api/v1/topics/{moldau_topic}/tail{query}", headers=headers)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]) == (status, error)
    connection.close()


def test_the_head_alone_does_not_follow(moldau_session_broker, moldau_topic):
    reply = ask(moldau_session_broker.http_address, "HEAD", f"/api/v1/topics/{moldau_topic}/tail")
    assert (reply.status, reply.body) == (200, None)


@pytest.mark.parametrize("version", ["2.0", "2.3"])
async def test_the_time_of_a_stream_is_charged_in_the_task_that_sends_it(version) -> None:
    steps: list[float] = []
    sent: list[bytes] = []

    async def events():
        for number in range(20):
            await asyncio.sleep(0)
            yield b"%d" % number

    async def receive() -> dict[str, str]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    before = ON_STEP.set(steps.append)
    try:
        response = event_streams.EventStream(events(), on_end=nothing_left)
        await response({"type": "http", "asgi": {"spec_version": version}}, receive, send)
    finally:
        ON_STEP.reset(before)
    assert b"19" in sent
    assert len(steps) > 20


def nothing_left() -> None:
    pass
