"""Connections with TLS: content, backpressure, refused handshakes, bounds. Real sockets."""

import asyncio
import logging
import os
import socket
import ssl
import struct
from datetime import timedelta

import pytest
import uvloop
from connections import Recorder, echo, echoed, framed, listening, read_frame
from secure_front import identity
from sliced import opened
from tls_world import TlsWorld

from moldau.model.slices import FileSlice
from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply
from moldau.net.tls import handshakes
from moldau.net.tls.connection import TlsConnection
from moldau.net.tls.contexts import TlsContexts
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.server.clock import SystemClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


async def connect(port, context, host="127.0.0.1"):
    return await asyncio.wait_for(
        asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host),
        wait_seconds_max(),
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_of_many_sizes_arrive_and_come_back(world, version) -> None:
    handler = Recorder(echo)
    bodies = [os.urandom(1 + (i * 7919) % 70_000) for i in range(150)] + [os.urandom(900_000)]
    context = world.client()
    context.minimum_version = context.maximum_version = version
    async with listening(handler, tls=world.contexts()) as (listener, port):
        reader, writer = await connect(port, context)
        # With TLS 1.3 a client is done before the server is.
        await until(lambda: len(listener.handshakes) == 0, "no handshake")
        await echoed(reader, writer, bodies)


def test_the_same_under_uvloop(world) -> None:
    bodies = [os.urandom(1 + (i * 7919) % 70_000) for i in range(50)]

    async def run() -> None:
        async with listening(Recorder(echo), tls=world.contexts()) as (_, port):
            reader, writer = await connect(port, world.client())
            for body in bodies:
                writer.write(framed(body))
                assert await read_frame(reader) == body
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_frames_that_arrive_byte_by_byte_are_put_together(world) -> None:
    async with listening(Recorder(echo), tls=world.contexts()) as (_, port):
        reader, writer = await connect(port, world.client())
        for byte in framed(b"hello") + framed(b"world"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert [await read_frame(reader), await read_frame(reader)] == [b"hello", b"world"]
        writer.close()


async def test_slices_of_files_are_encrypted_in_order(world, tmp_path) -> None:
    data = os.urandom(3_000_000)
    path = tmp_path / "segment"
    path.write_bytes(data)
    with opened(path) as file:

        def answer(connection: Connection, frame: bytes) -> None:
            size, position = struct.unpack(">ii", frame)
            head = struct.pack(">i", size + 3)
            connection.reply([head, b"<", FileSlice(file, position, size), b"", b"ab"])

        async with listening(Recorder(answer), tls=world.contexts()) as (_, port):
            reader, writer = await connect(port, world.client())
            wanted = [(2_900_000, 100), (10, 5), (9_000, 0), (70_000, 17), (1, 0)]
            for size, position in wanted:
                writer.write(framed(struct.pack(">ii", size, position)))
            for size, position in wanted:
                body = await read_frame(reader)
                assert body == b"<" + data[position : position + size] + b"ab"
            writer.close()


async def test_a_client_that_does_not_read_is_paused_and_gets_all_later(world) -> None:
    handler = Recorder(lambda connection, frame: connection.reply([framed(bytes(200_000))]))
    async with listening(handler, tls=world.contexts(), outgoing_bytes_max=300_000) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            loop = asyncio.get_running_loop()
            context = world.client()
            tls = await asyncio.to_thread(context.wrap_socket, raw, server_hostname="localhost")
            with tls:
                tls.settimeout(wait_seconds_max())
                await asyncio.to_thread(tls.sendall, framed(b"x") * 200)
                await asyncio.sleep(0.2)
                assert len(handler.frames) < 200

                def read_all() -> int:
                    left = 200 * 200_004
                    while left:
                        left -= len(tls.recv(min(left, 1 << 16)))
                    return left

                assert await loop.run_in_executor(None, read_all) == 0
                assert len(handler.frames) == 200


async def test_requests_wait_while_the_budget_is_used_up_and_are_handled_later(world) -> None:
    waiting: list[DeferredReply] = []
    handler = Recorder(lambda connection, frame: waiting.append(connection.defer()))
    # One client may have half of it.
    budget = ByteBudget(400_000)
    async with listening(handler, tls=world.contexts(), budget=budget) as (_, port):
        reader, writer = await connect(port, world.client())
        bodies = [os.urandom(60_000) for _ in range(20)]
        for body in bodies:
            writer.write(framed(body))
        await until(lambda: len(waiting) >= 3, "three requests")
        await asyncio.sleep(0.1)
        assert len(waiting) < 10
        for number in range(20):
            await until(lambda count=number: len(waiting) > count, "the next request")
            waiting[number].complete([framed(bytes([number]))])
            assert await read_frame(reader) == bytes([number])
        assert handler.frames == bodies
        writer.close()
    await until(lambda: budget.used == 0, "a free budget")


async def test_the_client_sees_a_proper_end(world) -> None:
    async with listening(Recorder(echo), tls=world.contexts()) as (listener, port):
        reader, writer = await connect(port, world.client())
        writer.write(framed(b"x"))
        await read_frame(reader)
        listener.drain()
        # Without TLS's own end asyncio would raise an SSLError here, with OpenSSL 3.
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        writer.close()
    assert listener.connection_count == 0


async def test_a_client_that_ends_tls_is_forgotten(world) -> None:
    handler = Recorder(echo)
    async with listening(handler, tls=world.contexts()) as (listener, port):
        _, writer = await connect(port, world.client())
        writer.close()
        await until(lambda: listener.connection_count == 0, "no connection")
    assert handler.closed == 1


# ---- who is let in


async def test_a_client_certificate_is_required_and_its_subject_is_known(world) -> None:
    seen = []

    def answer(connection: Connection, frame: bytes) -> None:
        assert connection.peer_certificate is not None
        seen.append(connection.peer_certificate.subject)
        connection.reply([framed(frame)])

    async with listening(Recorder(answer), tls=world.contexts(mtls=True)) as (_, port):
        reader, writer = await connect(port, world.client(world.client_files("alice")))
        writer.write(framed(b"x"))
        assert await read_frame(reader) == b"x"
        assert seen == ["CN=alice"]
        writer.close()


async def refused(port, context):
    """Why TLS fails for a client. In TLS 1.3 it learns so when it reads."""

    async def use() -> None:
        reader, writer = await connect(port, context)
        try:
            writer.write(framed(b"x"))
            await asyncio.wait_for(reader.readexactly(1), wait_seconds_max())
        finally:
            writer.close()

    with pytest.raises(ssl.SSLError) as caught:
        await use()
    return str(caught.value).replace("_", " ").lower()


async def test_bad_client_certificates_are_refused_and_logged(world, caplog) -> None:
    strange = identity("another authority")
    handler = Recorder(echo)
    async with listening(handler, tls=world.contexts(mtls=True)) as (listener, port):
        assert (
            "certificate required"
            in (await refused(port, world.client())).replace("_", " ").lower()
        )
        for pair in (
            world.client_files("eve", signer=strange),
            world.client_files("old", expires_in=timedelta(hours=-1)),
        ):
            await refused(port, world.client(pair))
        await until(lambda: listener.connection_count == 0, "no connection")
        assert listener.failures.failures_total == 3
    assert handler.frames == []
    text = caplog.text
    assert "the client has sent no certificate" in text
    assert "certificate has expired" in text
    assert "unable to get local issuer certificate" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_older_versions_of_tls_are_refused(world, caplog) -> None:
    context = world.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with listening(Recorder(echo), tls=world.contexts()) as (_, port):
        assert "protocol version" in await refused(port, context)
    assert "the client has no TLS 1.2 or newer" in caplog.text


async def test_weak_ciphers_are_refused(world) -> None:
    context = world.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA:ECDHE-ECDSA-AES128-SHA")
    async with listening(Recorder(echo), tls=world.contexts()) as (_, port):
        assert "handshake failure" in await refused(port, context)


async def test_clients_refuse_a_wrong_name_an_expired_and_a_foreign_certificate(
    world, caplog
) -> None:
    for problem, change in (
        ("mismatch", {"hosts": ("other.example",)}),
        ("expired", {"expires_in": timedelta(hours=-1)}),
        ("not yet valid", {"begins_in": timedelta(hours=1)}),
        ("local issuer", {"signer": identity("another")}),
    ):
        world.renew(**change)
        async with listening(Recorder(echo), tls=world.contexts()) as (listener, port):
            with pytest.raises(ssl.SSLCertVerificationError, match=problem):
                await connect(port, world.client(), host="localhost")
            await until(lambda of=listener: of.connection_count == 0, "no connection")
    assert "does it trust the certificate of this broker" in caplog.text


# ---- what is no TLS


async def test_plaintext_is_closed_and_logged_once(world, caplog) -> None:
    async with listening(Recorder(echo), tls=world.contexts()) as (listener, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(b"hello"))
            assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
            writer.close()
        assert listener.failures.failures_total == 5
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "does not use TLS" in lines[0]
    assert "listener test" in lines[0]


async def test_tls_to_a_plaintext_listener_is_closed_and_logged_once(world, caplog) -> None:
    async with listening(Recorder(echo)) as (_, port):
        for _ in range(3):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(port, world.client())
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "the client uses TLS, but this listener does not" in lines[0]


@pytest.mark.parametrize("data", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(5000)])
async def test_garbage_that_begins_like_tls_ends_the_connection(world, data) -> None:
    handler = Recorder(echo)
    async with listening(handler, tls=world.contexts(), handshake_seconds_max=0.3) as (
        listener,
        port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        await asyncio.wait_for(reader.read(), wait_seconds_max())
        writer.close()
        await until(lambda: listener.connection_count == 0, "no connection")
    assert handler.frames == []


async def test_garbage_within_tls_ends_only_that_connection(world) -> None:
    async with listening(Recorder(echo), tls=world.contexts()) as (listener, port):
        reader, writer = await connect(port, world.client())
        with socket.create_connection(("127.0.0.1", port)) as raw:
            tls = await asyncio.to_thread(
                world.client().wrap_socket, raw, server_hostname="localhost"
            )
            descriptor = tls.detach()
            with socket.socket(fileno=descriptor) as bare:
                bare.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
                await until(lambda: listener.connection_count == 1, "only one connection")
        writer.write(framed(b"still here"))
        assert await read_frame(reader) == b"still here"
        writer.close()


# ---- bounds


async def test_half_open_handshakes_are_bounded_and_end_while_others_are_served(
    world, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_PER_ADDRESS_MAX", 100)
    handler = Recorder(echo)
    async with listening(
        handler,
        tls=world.contexts(),
        handshake_seconds_max=0.5,
        connections_max=5000,
        connections_per_address_max=5000,
    ) as (
        listener,
        port,
    ):
        reader, writer = await connect(port, world.client())
        opened_here = []
        try:
            for number in range(1000):
                raw = socket.create_connection(("127.0.0.1", port))
                opened_here.append(raw)
                if number % 2:
                    raw.send(b"\x16\x03\x01")
                if number % 50 == 0:
                    await asyncio.sleep(0)
                    assert len(listener.handshakes) <= 100
            writer.write(framed(b"x"))
            assert await read_frame(reader) == b"x"
            await until(lambda: listener.connection_count == 1, "only one connection")
            assert len(listener.handshakes) == 0
            # One more is welcome now.
            second, writing = await connect(port, world.client())
            writing.write(framed(b"y"))
            assert await read_frame(second) == b"y"
            writing.close()
        finally:
            for raw in opened_here:
                raw.close()
        writer.close()
    assert listener.refused_total == 0
    assert "limit of 100 handshakes per address reached, and it is the oldest" in caplog.text
    assert "no TLS handshake within 0.5 s" in caplog.text


async def test_handshakes_above_their_share_of_time_wait_and_succeed(world, monkeypatch) -> None:
    waits = 0
    wait_for_turn = TlsConnection.wait_for_turn

    def counted(connection: TlsConnection) -> None:
        nonlocal waits
        waits += 1
        wait_for_turn(connection)

    monkeypatch.setattr(TlsConnection, "wait_for_turn", counted)
    # So little that each handshake uses it up.
    turns = HandshakeTurns(asyncio.get_running_loop(), SystemClock(), share_max=0.01)
    turns.took(0.02)
    tls = TlsContexts(world.files(), turns)
    async with listening(Recorder(echo), tls=tls) as (_, port):
        opened = await asyncio.gather(*(connect(port, world.client()) for _ in range(4)))
        for reader, writer in opened:
            writer.write(framed(b"x"))
            assert await read_frame(reader) == b"x"
            writer.close()
    assert waits >= 4


async def test_new_connections_of_one_address_are_bounded_per_second(world, caplog) -> None:
    async with listening(
        Recorder(echo), connections_max=1000, connections_per_address_max=1000,
        per_second_per_address_max=10,
    ) as (listener, port):  # fmt: skip
        for _ in range(60):
            raw = socket.create_connection(("127.0.0.1", port))
            raw.close()
        await until(
            lambda: listener.accepted_total + listener.refused_total == 60,
            "60 connections",
        )
        assert listener.accepted_total >= 20
        assert listener.refused_total >= 1
    assert "limit of 10 connections per second reached" in caplog.text


# ---- new certificates


async def test_a_new_certificate_serves_new_connections_and_open_ones_go_on(world) -> None:
    tls = world.contexts()
    async with listening(Recorder(echo), tls=tls) as (_, port):
        reader, writer = await connect(port, world.client())
        first = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        world.renew()
        assert tls.reload()
        second_reader, second_writer = await connect(port, world.client())
        second = second_writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert first != second
        for one, other in ((reader, writer), (second_reader, second_writer)):
            other.write(framed(b"x"))
            assert await read_frame(one) == b"x"
            other.close()
