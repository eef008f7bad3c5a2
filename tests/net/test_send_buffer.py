"""The send buffer of accepted connections. Real sockets on loopback, which is near."""

import asyncio
import socket
import struct
import sys

import pytest
from connections import Recorder, echo, listening

from moldau.net.connection import Connection
from moldau.net.send_buffer import (
    NEAR_MICROSECONDS_MAX,
    SEND_BUFFER_BYTES,
    is_near,
    tune_send_buffer,
)

pytestmark = pytest.mark.inprocess


def info(round_trip: int, size: int = 104) -> bytes:
    return struct.pack("=68xI", round_trip).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("round_trip", "expected"),
    [(1, True), (NEAR_MICROSECONDS_MAX, True), (NEAR_MICROSECONDS_MAX + 1, False), (0, False)],
)
def test_near_is_who_answers_within_the_bound(round_trip: int, expected: bool) -> None:
    assert is_near(info(round_trip)) is expected


def test_a_kernel_that_says_less_says_nothing() -> None:
    assert not is_near(info(1)[:71])


def test_a_socket_that_is_not_connected_keeps_its_buffer() -> None:
    with socket.socket() as sock:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        tune_send_buffer(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before


def test_a_socket_without_tcp_is_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        tune_send_buffer(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a round trip takes")
async def test_a_near_client_gets_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy this machine is.
    monkeypatch.setattr("moldau.net.send_buffer.NEAR_MICROSECONDS_MAX", 2**32 - 1)
    accepted: list[Connection] = []
    async with listening(Recorder(echo), on_accepted=accepted.append) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not accepted:
            await asyncio.sleep(0)
        size = accepted[0]._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        writer.close()
    assert SEND_BUFFER_BYTES <= size <= 4 * SEND_BUFFER_BYTES
