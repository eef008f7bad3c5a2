"""The gate: bytes on their way have a bound, and everything that passes is counted."""

import asyncio
import json
from http.client import HTTPConnection
from typing import Any

import pytest

from moldau.edge.http.cors import Cors
from moldau.edge.http.hosts import Hosts
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.edge.http.relay.serving import RELAYED
from moldau.model.errors import RefusedError
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

PIECE = 256 * 1024


def reply_of(size: int, pieces: int = 1):
    """An application that answers with so many bytes, so many times."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(pieces):
            await send(
                {
                    "type": "http.response.body",
                    "body": b"x" * size,
                    "more_body": number + 1 < pieces,
                }
            )

    return app


async def reader(scope, receive, send):
    """An application that takes in the whole body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


class Client:
    """Sends a body in pieces and keeps what comes."""

    def __init__(
        self, *pieces: bytes, method: str = "GET", headers=(), host: str = "127.0.0.1"
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": "/",
            "client": (host, 1234),
            "headers": [(b"host", b"localhost:8080"), *headers],
        }
        self._pieces = list(pieces)
        self.messages: list[dict[str, Any]] = []
        self.held: list[int] = []
        self.gate: LimitsMiddleware

    async def receive(self):
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message):
        self.messages.append(message)
        self.held.append(self.gate.buffered_bytes)

    async def ask(self, gate: LimitsMiddleware) -> None:
        self.gate = gate
        await gate(self.scope, self.receive, self.send)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])


def gate_of(app, bytes_max: int = 10**9, origins=()) -> LimitsMiddleware:
    return LimitsMiddleware(app, buffered_bytes_max=bytes_max, hosts=Hosts(), cors=Cors(origins))


def asked(gate: LimitsMiddleware, *pieces: bytes, **rest) -> Client:
    client = Client(*pieces, **rest)
    asyncio.run(client.ask(gate))
    return client


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 5])
@pytest.mark.parametrize("times", [1, 2])
def test_a_reply_leaves_in_pieces_and_arrives_as_it_was(size, times):
    gate = gate_of(reply_of(size, times))
    client = asked(gate)
    assert client.body == b"x" * size * times
    assert all(len(message["body"]) <= PIECE for message in client.messages[1:])
    ends = [not message.get("more_body", False) for message in client.messages[1:]]
    assert ends == [False] * (len(ends) - 1) + [True]
    # Held while it is sent, if it is large, and not any more.
    assert max(client.held) == (size if size > PIECE else 0)
    assert gate.buffered_bytes == 0


def test_what_another_broker_relays_was_checked_and_is_counted_there():
    gate = gate_of(reader, origins=("*",))
    client = Client(b"a" * 10, method="POST", headers=[(b"origin", b"https://evil.example")])
    client.scope["headers"] = [(b"host", b"evil.example"), *client.scope["headers"]]
    client.scope[RELAYED] = object()
    asyncio.run(client.ask(gate))
    assert (client.status, client.body) == (200, b"10")
    assert not gate.requests
    # A browser refuses a reply that has the header twice.
    assert client.headers == {}
    # But its memory is that of this broker.
    assert client.held[-1] == 10


def test_bytes_of_a_body_are_held_until_the_answer():
    gate = gate_of(reader)
    client = asked(gate, b"a" * 10, b"b" * 20, method="POST")
    assert (client.status, client.body) == (200, b"30")
    assert client.held[-1] == 30
    assert gate.buffered_bytes == 0


def test_a_client_without_room_for_its_reply_is_asked_to_retry():
    gate = gate_of(reply_of(4 * PIECE), 3 * PIECE)
    client = asked(gate)
    assert client.status == 503
    assert client.headers[b"retry-after"] == b"1"
    assert json.loads(client.body)["error"] == "THROTTLING_QUOTA_EXCEEDED"
    assert gate.buffered_bytes == 0
    assert (gate.refused_total, dict(gate.requests)) == (1, {("GET", 503): 1})


def test_replies_that_wait_for_their_readers_take_each_others_room():
    gate = gate_of(reply_of(2 * PIECE), 3 * PIECE)

    async def scene() -> tuple[int, int, int]:
        slow, goes_on = Client(), asyncio.Event()
        send = slow.send

        async def wait_and_send(message):
            await goes_on.wait()
            await send(message)

        slow.send = wait_and_send  # type: ignore[method-assign]
        first = asyncio.create_task(slow.ask(gate))
        await asyncio.sleep(0)
        second = Client()
        await second.ask(gate)
        goes_on.set()
        await first
        third = Client()
        await third.ask(gate)
        return slow.status, second.status, third.status

    assert asyncio.run(scene()) == (200, 503, 200)
    assert gate.buffered_bytes == 0


def test_bodies_that_never_end_leave_room_for_those_of_others():
    """Those of one client took all of it."""
    gate = gate_of(reader, 8 * PIECE)

    async def scene() -> list[int]:
        held, never = [], asyncio.Event()
        for _ in range(8):
            client = Client(bytes(PIECE - 1), b"", method="POST", host="127.0.0.2")
            receive = client.receive

            async def all_but_the_end(receive=receive, client=client):
                if len(client._pieces) == 1:
                    await never.wait()
                return await receive()

            client.receive = all_but_the_end  # type: ignore[method-assign]
            held.append(asyncio.create_task(client.ask(gate)))
        await asyncio.sleep(0)
        statuses = []
        for host in ("127.0.0.3", "127.0.0.4"):
            other = Client(bytes(2 * PIECE), method="POST", host=host)
            await other.ask(gate)
            statuses.append(other.status)
        never.set()
        refused = await asyncio.gather(*held, return_exceptions=True)
        assert sum(isinstance(each, RefusedError) for each in refused) == 6
        return statuses

    assert asyncio.run(scene()) == [200, 200]
    assert gate.buffered_bytes == 0


def test_a_single_reply_may_be_larger_than_the_share_of_a_client():
    gate = gate_of(reply_of(3 * PIECE), 4 * PIECE)
    assert asked(gate).status == 200


def test_a_client_that_goes_leaves_nothing_behind():
    gate = gate_of(reply_of(4 * PIECE))
    client = Client(b"")

    async def fail(message):
        raise OSError("gone")

    client.send = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        asyncio.run(client.ask(gate))
    assert gate.buffered_bytes == 0


def test_requests_are_counted_by_method_and_status_and_strange_methods_together():
    gate = gate_of(reply_of(1))
    for method in ("GET", "GET", "POST", "BREW", "WHEN"):
        asked(gate, method=method)
    assert dict(gate.requests) == {("GET", 200): 2, ("POST", 200): 1, ("other", 200): 2}
    assert sum(gate.seconds.counts) == 5


def test_what_streams_is_not_timed():
    gate = gate_of(reply_of(1, pieces=3))
    asked(gate)
    assert (gate.requests["GET", 200], sum(gate.seconds.counts)) == (1, 0)


ORIGIN = (b"origin", b"https://page.example")
PREFLIGHT = (ORIGIN, (b"access-control-request-method", b"POST"))


def test_no_foreign_page_may_read_anything_unless_it_is_named():
    client = asked(gate_of(reply_of(1)), headers=[ORIGIN])
    assert client.status == 403
    client = asked(gate_of(reply_of(1), origins=["https://other.example"]), headers=[ORIGIN])
    assert (client.status, client.headers[b"vary"]) == (403, b"origin")
    assert b"access-control-allow-origin" not in client.headers


@pytest.mark.parametrize(
    ("origins", "told"),
    [(["https://page.example"], b"https://page.example"), (["*"], b"*")],
    ids=["named", "all"],
)
def test_a_page_that_is_named_may_read_and_may_ask_before_it_writes(origins, told):
    gate = gate_of(reply_of(1), origins=origins)
    client = asked(gate, headers=[ORIGIN])
    assert client.headers[b"access-control-allow-origin"] == told
    client = asked(gate, method="OPTIONS", headers=PREFLIGHT)
    assert (client.status, client.body) == (204, b"")
    assert client.headers[b"access-control-allow-origin"] == told
    methods = client.headers[b"access-control-allow-methods"].split(b", ")
    assert set(methods) == {b"GET", b"HEAD", b"POST", b"PATCH", b"DELETE"}
    assert b"content-type" in client.headers[b"access-control-allow-headers"]


def test_a_preflight_is_refused_where_none_is_allowed():
    for origins in ([], ["https://other.example"]):
        client = asked(gate_of(reply_of(1), origins=origins), method="OPTIONS", headers=PREFLIGHT)
        assert client.status == 403
        assert b"access-control-allow-methods" not in client.headers


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "BREW"])
def test_a_page_that_is_not_named_changes_nothing_whatever_its_name_points_to(method):
    for origins in ([], ["https://other.example"]):
        client = asked(gate_of(reader, origins=origins), b"{}", method=method, headers=[ORIGIN])
        assert client.status == 403
        assert "http.cors_origins" in json.loads(client.body)["hint"]
    for origins in (["https://page.example"], ["*"]):
        client = asked(gate_of(reader, origins=origins), b"{}", method=method, headers=[ORIGIN])
        assert client.status == 200
    assert asked(gate_of(reader), b"{}", method=method).status == 200


def test_a_request_to_another_host_reaches_nothing():
    touched = []

    async def app(scope, receive, send):
        touched.append(scope)

    client = Client()
    client.scope["headers"] = [(b"host", b"evil.example:8080")]
    gate = gate_of(app)
    asyncio.run(client.ask(gate))
    assert (client.status, touched) == (421, [])
    assert gate.requests["GET", 421] == 1


def test_a_target_that_is_a_whole_url_is_served_as_its_path():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["raw_path"], scope["path"]))

    for host in (b"localhost:8080", b"evil.example"):
        client = Client()
        target = b"http://" + host + b"/a%20b"
        client.scope |= {"raw_path": target, "path": target.decode().replace("%20", " ")}
        asyncio.run(client.ask(gate_of(app)))
    assert seen == [(b"/a%20b", "/a b")]
    assert client.status == 421


def test_the_setting_of_a_broker_names_who_may():
    settings = {"HTTP__CORS_ORIGINS": "https://a.example, https://page.example"}
    with Broker(settings=settings) as broker:
        for origin, status in (("https://page.example", 201), ("https://evil.example", 403)):
            connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
            sent = {"content-type": "application/json", "origin": origin}
            connection.request("POST", "/api/v1/topics", body=b'{"name": "t"}', headers=sent)
            response = connection.getresponse()
            told = response.getheader("access-control-allow-origin")
            assert (response.status, told) == (status, origin if status == 201 else None)
            connection.close()
