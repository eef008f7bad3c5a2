"""The listener for peers: unknown clients get no answer, and do not keep peers out."""

import asyncio
import socket
import struct

import pytest
from peer_handshake import framed, peer_secret, read_framed
from peer_links import HELLO, ONE, Handler, closed_after, linked, listening, run

from moldau.net.peers import listener as peer_listener
from moldau.net.peers.frames import FRAME_BYTES_MAX
from moldau.net.peers.handshake import HANDSHAKE_BYTES_MAX, CallerHandshake, ListenerHandshake
from moldau.net.peers.limits import LinkLimits
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        framed(b"\0" * 40),
        framed(CallerHandshake(peer_secret(), HELLO).hello[:-1]),
        framed(CallerHandshake(peer_secret(b"other"), HELLO).hello),
        struct.pack(">I", HANDSHAKE_BYTES_MAX + 1),
        struct.pack(">I", FRAME_BYTES_MAX),
    ],
    ids=["HTTP", "zeros", "cut off", "other secret", "too long", "a frame of a peer"],
)
def test_a_client_that_begins_with_no_proven_hello_gets_no_answer(data: bytes) -> None:
    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (listener, port):
            assert await closed_after(port, data) == b""
            assert handler.connected == []
            assert listener.peers == []

    run(scenario)


def test_a_caller_that_says_nothing_in_time_is_closed() -> None:
    async def scenario() -> None:
        async with listening(Handler(), handshake_seconds_max=0.05) as (_, port):
            assert await closed_after(port, b"\0\0") == b""

    run(scenario)


def test_a_hello_that_was_overheard_lets_nobody_in() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (listener, port):
            overheard = CallerHandshake(peer_secret(), HELLO)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(overheard.hello))
            proof = overheard.prove(await read_framed(reader))
            writer.close()
            # The same again, all of it: it gets another challenge, and no response.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(overheard.hello))
            await read_framed(reader)
            writer.write(framed(proof))
            assert await reader.read() == b""
            writer.close()
            assert (handler.connected, listener.peers) == ([], [])
            assert listener.refused_total == 1

    run(scenario)


def test_neither_side_gets_on_with_another_secret(caplog: pytest.LogCaptureFixture) -> None:
    often = LinkLimits(retry_seconds_min=0.001, retry_seconds_max=0.001)

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler) as (listener, port),
            linked(port, limits=often, secret=peer_secret(b"other")) as (link, events),
        ):
            await until(lambda: listener.refused_total > 5, "it was refused often")
            assert not link.is_connected
            assert (events.up, handler.connected) == (0, [])
        assert caplog.text.count("it does not know the secret of this cluster") == 1
        assert caplog.text.count("closes the connections of this broker without an answer") == 1

    run(scenario)


def test_a_link_sends_nothing_but_its_hello_to_a_listener_with_another_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    often = LinkLimits(retry_seconds_min=0.001, retry_seconds_max=0.001)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            loop = asyncio.get_running_loop()
            false = CallerHandshake(peer_secret(b"other"), HELLO)
            async with linked(server.getsockname()[1], limits=often) as (link, events):
                for _ in range(5):
                    peer, _ = await loop.sock_accept(server)
                    with peer:
                        assert (await loop.sock_recv(peer, 4096))[4:8] == b"MoPr"
                        challenge = ListenerHandshake(peer_secret(b"other")).challenge(false.hello)
                        await loop.sock_sendall(peer, framed(challenge))
                        assert await loop.sock_recv(peer, 4096) == b""
                assert (link.is_connected, events.up) == (False, 0)
        assert caplog.text.count("does not know the secret of this cluster") == 1

    run(scenario)


def test_unknown_clients_that_wait_do_not_keep_a_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "_UNPROVEN_MAX", 8)

    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (listener, port):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            async with linked(port) as (link, _):
                await until(lambda: link.is_connected, "the link is up")
                await until(lambda: len(listener._unproven) <= 8, "the others were closed")
                for reader, _ in clients[:12]:
                    assert await reader.read() == b""
                assert listener.peers == [ONE]
            for _, writer in clients:
                writer.close()

    run(scenario)


def test_a_flood_of_one_address_does_not_close_the_handshake_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_listener, "_UNPROVEN_MAX", 8)

    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (listener, port):
            # A peer that is slow: it is older than all others.
            caller = CallerHandshake(peer_secret(), HELLO)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=("127.0.0.2", 0)
            )
            writer.write(framed(caller.hello))
            challenge = await read_framed(reader)
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for one, _ in clients[:12]:
                assert await one.read() == b""
            writer.write(framed(caller.prove(challenge)))
            await until(lambda: listener.peers == [ONE], "the peer is connected")
            for _, each in (*clients, (reader, writer)):
                each.close()

    run(scenario)


def test_unknown_clients_are_logged_once_per_address(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening(Handler()) as (listener, port):
            for _ in range(5):
                await closed_after(port, framed(b"x" * 100))
            assert listener.refused_total == 5
        warnings = [one for one in caplog.records if one.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "to the listener peers closed" in warnings[0].message

    run(scenario)
