"""Passing a request on to another broker, and its reply to the client."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from open_sessions import session_over
from relay_world import PEER, Serving, Stream, body, start
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Visit
from moldau.edge.http.relay.asking import Relay, relay_to
from moldau.edge.http.relay.serving import RELAYED
from moldau.edge.http.responses import respond_http_error, respond_refusal
from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import NotSentError

OTHER = 2
NOW_MS = 1_000
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class Peer:
    """The other broker, as the link to it shows it."""

    def __init__(self, app: Any) -> None:
        self.serving = Serving(app)
        self.failure: RefusedError | None = None
        self.lost = asyncio.Event()
        self.called: list[int] = []

    async def call(self, peer: int, method: int, payload: bytes, timeout_seconds: float) -> bytes:
        assert peer == OTHER
        self.called.append(method)
        if self.failure is not None:
            raise self.failure
        handler = self.serving.exchanges.methods[PeerMethod(method)]
        working = asyncio.ensure_future(handler(PEER, payload))
        losing = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
            if self.lost.is_set():
                raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "link to broker 2 lost")
            return working.result()
        finally:
            working.cancel()
            losing.cancel()


class Client:
    """A request to the broker that relays it, and what comes back."""

    def __init__(
        self,
        app: Any,
        *,
        alive: tuple[int, ...] = (1, 2),
        expires_at_ms: int | None = None,
    ) -> None:
        self.peer = Peer(app)
        self.relay = Relay(cast(Any, self.peer), 100)
        self.cluster = SimpleNamespace(alive=frozenset(alive))
        brokers = {number: SimpleNamespace(listeners=()) for number in (1, 2)}
        session = session_over(
            broker_id=1,
            image=SimpleNamespace(brokers=brokers),
            cluster=self.cluster,
            clock=SimpleNamespace(wall_ms=lambda: NOW_MS, monotonic=lambda: 0.0),
        )
        self._visit = Visit(session, expires_at_ms)
        self.left = asyncio.Event()
        self.messages: list[Any] = []

    async def ask(
        self, method: str = "GET", content: bytes = b"", broker: int = OTHER, **scope: Any
    ) -> None:
        async def handle(request: Request) -> Response:
            return relay_to(request, broker)

        async def refuse(request: Request, error: Exception) -> Response:
            assert isinstance(error, RefusedError)
            return respond_refusal(error)

        async def too_large(request: Request, error: Exception) -> Response:
            return respond_http_error(cast(Any, error))

        app = Starlette(
            routes=[Route("/{rest:path}", handle, methods=["GET", "POST"])],
            exception_handlers={RefusedError: refuse, 413: too_large},
        )
        app.state.relay = self.relay
        sent = [(b"authorization", b"Basic x"), (b"cookie", b"c"), (b"host", b"h")]
        given = {
            "type": "http",
            "method": method,
            "path": "/a b",
            "query_string": b"q=%2F",
            "headers": [*sent, (b"content-type", b"text/plain"), (b"last-event-id", b"7")],
            "moldau.visit": self._visit,
            **scope,
        }
        requests = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def receive() -> Any:
            for message in requests:
                return message
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.messages.append(message)

        await app(cast(Any, given), receive, send)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def is_complete(self) -> bool:
        return not self.messages[-1].get("more_body", False)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, json.loads(self.body)["error"]


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    shown = [scope["method"], scope["path"], scope["query_string"].decode()]
    named = [name.decode() for name, _ in scope["headers"]]
    await start(send, (b"x-made-by", b"2"), status=207)
    content = {"asked": shown, "headers": named, "body": message["body"].decode()}
    await body(send, json.dumps(content).encode())


async def test_the_reply_is_that_of_the_other_broker_which_gets_no_credentials() -> None:
    client = Client(echo)
    await client.ask("POST", b"sent")
    assert client.messages[0]["headers"] == [(b"x-made-by", b"2")]
    assert (client.status, client.is_complete) == (207, True)
    assert json.loads(client.body) == {
        "asked": ["POST", "/a b", "q=%2F"],
        "headers": ["content-type", "last-event-id"],
        "body": "sent",
    }
    # It has nothing to close.
    assert client.peer.called == [PeerMethod.RELAY_OPEN]


async def test_a_large_reply_arrives_whole() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await body(send, b"x" * 1_000_000)

    client = Client(large)
    await client.ask()
    assert (client.body, client.is_complete) == (b"x" * 1_000_000, True)


async def test_a_relayed_request_is_not_relayed_again() -> None:
    client = Client(echo)
    already: dict[str, Any] = {RELAYED: object()}
    await client.ask(**already)
    assert client.error == (503, "BROKER_NOT_AVAILABLE")
    assert client.peer.called == []


@pytest.mark.parametrize(("broker", "alive"), [(2, (1,)), (3, (1, 2, 3))], ids=["dead", "unknown"])
async def test_a_broker_that_cannot_be_asked_is_not(broker: int, alive: tuple[int, ...]) -> None:
    client = Client(echo, alive=alive)
    await client.ask(broker=broker)
    assert client.error == (503, "BROKER_NOT_AVAILABLE")
    assert client.peer.called == []


async def test_a_broker_of_an_older_version_is_named() -> None:
    client = Client(echo)
    client.peer.failure = RefusedError(ErrorCode.UNSUPPORTED_VERSION, "unknown peer method 60")
    await client.ask()
    assert client.error == (503, "BROKER_NOT_AVAILABLE")
    assert "upgrade broker 2" in json.loads(client.body)["hint"]


@pytest.mark.parametrize(
    ("method", "failure", "shown"),
    [
        # A change may have been made.
        ("POST", RefusedError(ErrorCode.REQUEST_TIMED_OUT, "late"), "REQUEST_TIMED_OUT"),
        ("POST", RefusedError(ErrorCode.NETWORK_EXCEPTION, "lost"), "NETWORK_EXCEPTION"),
        ("POST", NotSentError(ErrorCode.NETWORK_EXCEPTION, "no link"), "BROKER_NOT_AVAILABLE"),
        ("GET", RefusedError(ErrorCode.REQUEST_TIMED_OUT, "late"), "BROKER_NOT_AVAILABLE"),
        (
            "GET",
            RefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "many"),
            "THROTTLING_QUOTA_EXCEEDED",
        ),
    ],
)
async def test_what_fails_says_whether_it_may_have_been_done(
    method: str, failure: RefusedError, shown: str
) -> None:
    client = Client(echo)
    client.peer.failure = failure
    await client.ask(method)
    assert client.error == (503, shown)


async def test_a_body_has_the_limit_of_the_largest_that_is_taken() -> None:
    client = Client(echo)
    await client.ask("POST", b"x" * (4 * 1024 * 1024 + 1))
    assert client.status == 413
    assert client.peer.called == []


async def followed(client: Client, stream: Stream, then: Callable[[], Awaitable[None]]) -> None:
    """What happens `then`, after one event."""
    asking = asyncio.ensure_future(client.ask())
    stream.put(b"id: 1\ndata: {}\n\n")
    await until(lambda: b"id: 1" in client.body)
    await then()
    await asking


async def test_a_stream_goes_on_until_the_client_leaves() -> None:
    stream = Stream(EVENTS)
    client = Client(stream)

    async def leave() -> None:
        stream.put(b"id: 2\ndata: {}\n\n")
        await until(lambda: b"id: 2" in client.body)
        # Longer than one part is waited for.
        await asyncio.sleep(60)
        client.left.set()

    await followed(client, stream, leave)
    await until(lambda: stream.has_ended)
    assert client.peer.called[-1] == PeerMethod.RELAY_CLOSE
    await until(lambda: len(client.peer.serving.exchanges) == 0)


def last_event(client: Client) -> Any:
    *_, kind, data, end = client.body.decode().split("\n")[:-1]
    assert (kind, end) == ("event: error", "")
    assert client.is_complete
    return json.loads(data.removeprefix("data: "))


async def test_a_stream_of_a_broker_that_dies_ends_with_an_error() -> None:
    stream = Stream(EVENTS)
    client = Client(stream)

    async def lose() -> None:
        client.peer.lost.set()

    await followed(client, stream, lose)
    assert last_event(client)["error"] == "BROKER_NOT_AVAILABLE"


async def test_a_stream_of_a_broker_that_hangs_ends_when_it_counts_as_dead() -> None:
    stream = Stream(EVENTS)
    client = Client(stream)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def hang() -> None:
        client.cluster.alive = frozenset({1})

    await followed(client, stream, hang)
    assert last_event(client)["error"] == "BROKER_NOT_AVAILABLE"
    assert loop.time() - began < 2


@pytest.mark.parametrize(
    ("method", "error"), [("GET", "BROKER_NOT_AVAILABLE"), ("POST", "NETWORK_EXCEPTION")]
)
async def test_a_change_that_a_broker_hangs_in_may_have_been_made(method: str, error: str) -> None:
    async def hanging(scope: Any, receive: Any, send: Any) -> None:
        client.cluster.alive = frozenset({1})
        await asyncio.sleep(1000)

    client = Client(hanging)
    await client.ask(method)
    assert client.error == (503, error)
    await client.peer.serving.exchanges.stop(0)


async def test_an_event_that_did_not_arrive_whole_is_not_made_one() -> None:
    """The browser would take it for the record, and go on behind it."""
    stream = Stream(EVENTS)
    client = Client(stream)

    async def lose() -> None:
        stream.put(b"id: 2\nda")
        await until(lambda: b"id: 2" in client.body)
        client.peer.lost.set()

    await followed(client, stream, lose)
    assert client.body.endswith(b"id: 2\nda")
    assert not client.is_complete


async def test_another_reply_that_breaks_off_stays_incomplete() -> None:
    stream = Stream((b"content-type", b"application/json"))
    client = Client(stream)

    async def lose() -> None:
        client.peer.lost.set()

    await followed(client, stream, lose)
    assert not client.is_complete


async def test_a_stream_ends_when_this_broker_stops() -> None:
    stream = Stream(EVENTS)
    client = Client(stream)

    async def stop() -> None:
        client.relay.stop()

    await followed(client, stream, stop)
    assert "stopping" in last_event(client)["detail"]
    await until(lambda: stream.has_ended)


async def test_a_stream_ends_when_the_login_does() -> None:
    stream = Stream(EVENTS)
    client = Client(stream, expires_at_ms=NOW_MS)
    await client.ask()
    assert last_event(client)["error"] == "SASL_AUTHENTICATION_FAILED"


async def test_a_reply_that_never_began_is_an_error() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("planted")

    client = Client(broken)
    await client.ask()
    assert client.error == (503, "BROKER_NOT_AVAILABLE")


async def test_exchanges_have_numbers_of_their_own() -> None:
    relay = Relay(cast(Any, None), 100)
    assert [relay.new_exchange() for _ in range(3)] == [101, 102, 103]
