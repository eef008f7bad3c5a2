"""Requests that another broker relays: served as its client's own, bounded, and given up."""

import asyncio
import logging
from typing import Any

import pytest
from relay_world import PEER, READ_ONLY, Serving, Stream, body, left, start

from moldau.edge.http.relay import serving
from moldau.edge.http.relay.messages import (
    IDLE_SECONDS_MAX,
    PART_BYTES_MAX,
    WAIT_SECONDS,
    Part,
    encode,
)
from moldau.edge.http.relay.serving import EXCHANGES_MAX, EXCHANGES_PER_PEER_MAX, RELAYED
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.principal import user


async def settled() -> None:
    """Everything that can run has run."""
    for _ in range(10):
        await asyncio.sleep(0)


def refused(code: ErrorCode, match: str | None = None) -> Any:
    return pytest.raises(RefusedError, match=match, check=lambda error: error.code is code)


async def test_a_reply_is_one_part_if_it_is_small() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        message = await receive()
        await start(send, (b"content-type", b"text/plain"), status=201)
        await body(send, b"<" + message["body"] + b">")

    world = Serving(app)
    part = await world.open(method="POST", body=b"sent")
    assert part == Part(
        status=201, headers=[(b"content-type", b"text/plain")], body=b"<sent>", is_last=True
    )
    (scope,) = seen
    assert (scope["method"], scope["path"], scope["query_string"]) == (
        "POST",
        "/a b",
        b"after=x%2F1",
    )
    assert (scope["headers"], scope["client"]) == ([(b"accept", b"x")], ("10.0.0.9", 0))
    visitor = scope[RELAYED]
    assert (visitor.principal, visitor.access) == (user("alice"), READ_ONLY)
    assert visitor.expires_at_ms == 7
    await settled()
    assert len(world.exchanges) == 0


async def test_a_large_reply_is_made_as_it_is_pulled() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await start(send)
        for number in range(40):
            await body(send, bytes([number]) * 50_000, more=number < 39)
            sent += 1

    world = Serving(app)
    part = await world.open()
    pieces = [part.body]
    while not part.is_last:
        await settled()
        # One part, and what the application sent with one call beyond it.
        assert sent * 50_000 <= sum(map(len, pieces)) + PART_BYTES_MAX + 50_000
        part = await world.next()
        pieces.append(part.body)
        assert (part.status, part.headers) == (0, [])
    assert b"".join(pieces) == b"".join(bytes([number]) * 50_000 for number in range(40))
    assert max(map(len, pieces)) == PART_BYTES_MAX


async def test_a_stream_is_waited_for_and_a_quiet_one_gets_an_empty_part() -> None:
    stream = Stream((b"content-type", b"text/event-stream"))
    world = Serving(stream)
    part = await world.open()
    assert (part.status, part.body, part.is_last) == (200, b"", False)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await world.next() == Part()
    assert loop.time() - began == pytest.approx(WAIT_SECONDS)
    waiting = asyncio.ensure_future(world.next())
    await settled()
    stream.put(b"a")
    assert await waiting == Part(body=b"a")
    stream.put(b"b")
    stream.put(b"c")
    await settled()
    assert await world.next() == Part(body=b"bc")


async def test_the_application_sees_that_the_client_leaves() -> None:
    stream = Stream()
    world = Serving(stream)
    await world.open()
    await world.close()
    await settled()
    assert stream.has_ended
    assert len(world.exchanges) == 0
    with refused(ErrorCode.BROKER_NOT_AVAILABLE):
        await world.next()
    # Twice, or never opened: nothing to do.
    await world.close()


async def test_a_change_is_finished_although_its_client_has_left() -> None:
    """As without a relay: a broker does not stop in the middle."""
    is_done, may_go = False, asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal is_done
        await may_go.wait()
        await start(send)
        await body(send, b"x" * 10 * PART_BYTES_MAX)
        is_done = True

    world = Serving(app)
    waiting = asyncio.ensure_future(world.open())
    await settled()
    await world.close()
    with refused(ErrorCode.INVALID_REQUEST, "open already"):
        # It counts until it ends.
        await world.open()
    may_go.set()
    await settled()
    assert is_done
    await waiting
    assert len(world.exchanges) == 0


async def test_an_exchange_that_is_not_asked_for_parts_is_closed() -> None:
    stream = Stream()
    world = Serving(stream)
    await world.open()
    for _ in range(9):
        # It is being asked for all of this time.
        await world.next()
    assert not stream.has_ended
    await asyncio.sleep(IDLE_SECONDS_MAX - 1)
    assert not stream.has_ended
    await asyncio.sleep(10)
    assert stream.has_ended
    assert len(world.exchanges) == 0


async def test_the_exchanges_of_a_broker_that_died_end_soon() -> None:
    stream = Stream()
    world = Serving(stream)
    await world.open()
    world.queued = None
    await asyncio.sleep(6)
    assert stream.has_ended


async def test_a_broker_may_relay_so_many_and_all_together_so_many() -> None:
    world = Serving(Stream())
    for exchange in range(EXCHANGES_PER_PEER_MAX):
        await world.open(exchange)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, str(EXCHANGES_PER_PEER_MAX)):
        await world.open(1000)
    for exchange in range(EXCHANGES_MAX - EXCHANGES_PER_PEER_MAX):
        await world.open(exchange, peer=2)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, str(EXCHANGES_MAX)):
        await world.open(1, peer=3)
    # One that ends makes room, also for those of others.
    await world.close(0)
    await settled()
    await world.open(1, peer=3)
    await world.exchanges.stop(0)
    assert len(world.exchanges) == 0


async def test_an_application_that_fails_cuts_the_reply(caplog: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await body(send, b"begun", more=True)
        raise ValueError("planted")

    world = Serving(app)
    with caplog.at_level(logging.ERROR):
        part = await world.open()
    assert part == Part(status=200, body=b"begun", is_last=True, is_cut=True)
    assert "planted" in caplog.text


async def test_a_full_link_is_waited_for() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await body(send, b"x")

    world = Serving(app)
    world.queued = 3 * 10**6
    waiting = asyncio.ensure_future(world.open())
    await asyncio.sleep(1)
    assert not waiting.done()
    world.queued = 0
    assert (await waiting).body == b"x"
    world.queued = 3 * 10**6
    with refused(ErrorCode.NETWORK_EXCEPTION, "full"):
        await world.open(2)


async def test_a_stop_waits_for_replies_and_cuts_the_others() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2 if scope["path"] == "/soon" else 1000)
        await start(send)
        await body(send, b"x")

    world = Serving(app)
    soon = asyncio.ensure_future(world.open(1, path="/soon"))
    late = asyncio.ensure_future(world.open(2, path="/late"))
    await settled()
    stopping = asyncio.ensure_future(world.exchanges.stop(3))
    await settled()
    with refused(ErrorCode.BROKER_NOT_AVAILABLE, "stopping"):
        await world.open(3)
    assert (await soon).body == b"x"
    assert not stopping.done()
    await stopping
    assert await late == Part(is_last=True, is_cut=True)


@pytest.mark.parametrize("turns", [0, 5])
async def test_a_request_that_is_cut_leaves_no_timer(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Also if the application has not begun, or has not returned."""
    checks = 0
    check = serving._Exchange._close_if_idle

    def counted(exchange: Any) -> None:
        nonlocal checks
        checks += 1
        check(exchange)

    monkeypatch.setattr(serving._Exchange, "_close_if_idle", counted)
    world = Serving(Stream())
    opening = asyncio.ensure_future(world.open())
    while not len(world.exchanges):
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    await world.exchanges.stop(0)
    opening.cancel()
    await asyncio.sleep(30)
    assert checks == 0


async def test_what_makes_no_sense_is_refused() -> None:
    world = Serving(Stream())
    await world.open()
    waiting = asyncio.ensure_future(world.next())
    await settled()
    with refused(ErrorCode.INVALID_REQUEST, "Two parts"):
        await world.next()
    with refused(ErrorCode.INVALID_REQUEST, "open already"):
        await world.open()
    with refused(ErrorCode.BROKER_NOT_AVAILABLE):
        await world.next(peer=2)
    for handle in (world.exchanges.on_open, world.exchanges.on_next, world.exchanges.on_close):
        for payload in (b"", b"\xc1", encode("no"), encode({"exchange": "1"})):
            with refused(ErrorCode.INVALID_REQUEST):
                await handle(PEER, payload)
    waiting.cancel()
    await world.exchanges.stop(0)


async def test_the_body_comes_once_and_then_the_client_is_there_until_it_leaves() -> None:
    received: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append(await receive())
        await left(receive)
        received.append("left")

    world = Serving(app)
    waiting = asyncio.ensure_future(world.open(body=b"b"))
    await settled()
    assert received == [{"type": "http.request", "body": b"b", "more_body": False}]
    await world.close()
    await settled()
    assert received[1:] == ["left"]
    assert (await waiting).is_cut
