"""The machine's own sockets, as connections open them."""

import socket
import struct

import pytest

from moldau.net.sockets import OS_SOCKETS
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

LOOPBACK = "127.0.0.1"
LINGER_NEVER = struct.pack("ii", 1, 0)


def test_an_address_that_is_held_is_not_listened_to() -> None:
    with OS_SOCKETS.bound(LOOPBACK, 0) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname(), 30)


def test_one_to_dial_with_does_not_wait() -> None:
    sock = OS_SOCKETS.unconnected(socket.AF_INET, socket.SOCK_STREAM, 0)
    with sock:
        assert sock.getblocking() is False


async def test_those_that_the_other_side_has_reset_are_found() -> None:
    with OS_SOCKETS.bound(LOOPBACK, 0) as listening:
        listening.listen()
        clients = [socket.create_connection(listening.getsockname(), 30) for _ in range(2)]
        accepted = [listening.accept()[0] for _ in clients]
        descriptors = [sock.fileno() for sock in accepted]
        assert OS_SOCKETS.broken(descriptors) == []
        clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NEVER)
        clients[0].close()
        await until(lambda: OS_SOCKETS.broken(descriptors), "the reset is seen")
        assert OS_SOCKETS.broken(descriptors) == descriptors[:1]
        for sock in (clients[1], *accepted):
            sock.close()
