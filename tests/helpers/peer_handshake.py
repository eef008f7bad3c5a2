"""Both sides of the handshake between brokers, on plain sockets."""

import asyncio
import contextlib
import secrets
import socket
import struct

from moldau.net.peers.handshake import CallerHandshake, Hello, HelloResponse, ListenerHandshake
from moldau.net.peers.secret import PeerSecret
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

_LENGTH = struct.Struct(">I")


def peer_secret(value: bytes = b"secret") -> PeerSecret:
    return PeerSecret(value, secrets.token_bytes)


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def receive_framed(peer: socket.socket) -> bytes:
    (size,) = _LENGTH.unpack(peer.recv(_LENGTH.size, socket.MSG_WAITALL))
    return peer.recv(size, socket.MSG_WAITALL)


def told_by_peer(broker: Broker, message: bytes) -> bytes:
    """All that the port for peers answers until it closes."""
    received = b""
    with (
        socket.create_connection(("127.0.0.1", broker.raft_port), wait_seconds_max()) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        client.sendall(message)
        while more := client.recv(4096):
            received += more
    return received


async def read_framed(reader: asyncio.StreamReader) -> bytes:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(size)


async def call_as_peer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: PeerSecret, hello: Hello
) -> HelloResponse:
    handshake = CallerHandshake(secret, hello)
    writer.write(framed(handshake.hello))
    writer.write(framed(handshake.prove(await read_framed(reader))))
    return handshake.read_response(await read_framed(reader))


async def answer_as_peer(peer: socket.socket, secret: PeerSecret, reason: str = "") -> Hello:
    """Take the part of the listener."""
    loop = asyncio.get_running_loop()

    async def receive() -> bytes:
        (size,) = _LENGTH.unpack(await loop.sock_recv(peer, _LENGTH.size))
        return await loop.sock_recv(peer, size)

    handshake = ListenerHandshake(secret)
    await loop.sock_sendall(peer, framed(handshake.challenge(await receive())))
    hello = handshake.check(await receive())
    await loop.sock_sendall(peer, framed(handshake.response(reason)))
    return hello
