"""The side that connects: it trusts its CA only, and sends memory and files encrypted."""

import asyncio
import logging
import os
import socket
from collections import deque

import pytest
from connections import Recorder, echo, framed, listening
from secure_front import identity
from sliced import opened
from tls_world import TlsWorld

from moldau.model.slices import FileSlice
from moldau.net.connection import Connection
from moldau.net.socket_writer import SocketWriter
from moldau.net.tls.channel import TlsFailedError
from moldau.net.tls.dial import SecuredSocket, TlsSending, secure
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


async def connected(port):
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def dial(port, context, host="localhost"):
    sock = await connected(port)
    try:
        async with asyncio.timeout(wait_seconds_max()):
            return sock, await secure(asyncio.get_running_loop(), sock, context, host)
    except BaseException:
        sock.close()
        raise


async def receive(secured: SecuredSocket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(wait_seconds_max()):
        while len(data) < size:
            more = await secured.receive(size - len(data))
            assert more, "the connection ended"
            data += more
    return data


class Stream(TlsSending, SocketWriter):
    """As a link to a peer has one."""

    __slots__ = ("_sealed", "_tls", "closed_because")

    def __init__(self, sock: socket.socket, secured: SecuredSocket) -> None:
        super().__init__(asyncio.get_running_loop(), sock)
        self.closed_because = ""
        self._tls = secured.channel
        self._sealed = deque()
        self._loop.add_reader(sock, self._on_readable)

    def send(self, chunks) -> None:
        self._enqueue(chunks)
        if not self._writing:
            self._write()

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        if not self.closed_because:
            self.closed_because = reason
            self._loop.remove_reader(self._socket)
            super().close(reason, level)


async def test_messages_pass_both_ways_and_then_a_stream_sends(world, tmp_path) -> None:
    data = os.urandom(1_500_000)
    path = tmp_path / "segment"
    path.write_bytes(data)

    def answer(connection: Connection, frame: bytes) -> None:
        if len(frame) < 100:
            echo(connection, frame)
        else:
            connection.no_reply()

    handler = Recorder(answer)
    async with listening(handler, tls=world.contexts(mtls=True), request_bytes_max=1 << 22) as (
        _,
        port,
    ):
        sock, secured = await dial(port, world.contexts().client)
        await secured.send(framed(b"hello"))
        assert await receive(secured, 9) == framed(b"hello")
        stream = Stream(sock, secured)
        with opened(path) as file:
            head = len(data) + 3
            chunks = [head.to_bytes(4, "big"), b"abc", FileSlice(file, 0, len(data))]
            for _ in range(3):
                stream.send(chunks)
            await until(lambda: len(handler.frames) == 4, "three frames")
        assert handler.frames[1:] == [b"abc" + data] * 3
        stream.close("done")


async def test_a_stream_notices_the_end_and_data_that_it_does_not_expect(world) -> None:
    handler = Recorder(echo)
    async with listening(handler, tls=world.contexts()) as (listener, port):
        sock, secured = await dial(port, world.contexts().client)
        stream = Stream(sock, secured)
        stream.send([framed(b"x")])
        await until(lambda: stream.closed_because, "a close")
        assert stream.closed_because == "unexpected data from the peer"
        sock, secured = await dial(port, world.contexts().client)
        stream = Stream(sock, secured)
        await until(
            lambda: listener.connection_count == 1 and not len(listener.handshakes), "a handshake"
        )
        listener.drain()
        await until(lambda: stream.closed_because, "a close")
        assert stream.closed_because == "closed by the peer"


async def test_a_listener_that_is_not_trusted_is_refused(world) -> None:
    async with listening(Recorder(echo), tls=world.contexts()) as (_, port):
        client = world.contexts().client
        with pytest.raises(TlsFailedError, match="Hostname mismatch"):
            await dial(port, client, host="other.example")
        world.authority = identity("another authority")
        world.ca_file.write_text(world.authority.pem)
        world.renew()
        with pytest.raises(TlsFailedError, match="certificate is not accepted"):
            await dial(port, world.contexts().client)


async def test_a_listener_without_tls_is_refused(world) -> None:
    async with listening(Recorder(echo)) as (_, port):
        with pytest.raises((TlsFailedError, ConnectionError)):
            await dial(port, world.contexts().client)
