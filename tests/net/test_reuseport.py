"""Addresses that two may share for a while."""

import socket

import pytest

from moldau.net.reuseport import prefer_second, shared_socket
from moldau.net.sockets import OS_SOCKETS

pytestmark = pytest.mark.inprocess

LOOPBACK = "127.0.0.1"


def accepted(listener: socket.socket) -> int:
    count = 0
    try:
        while True:
            listener.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


def connect(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection((LOOPBACK, port), 30) for _ in range(count)]


@pytest.mark.parametrize("host", [LOOPBACK, "localhost", "0.0.0.0"])
def test_a_shared_address_says_its_numbers_and_is_reached(host: str) -> None:
    sock, (address, port) = shared_socket(host, 0)
    with sock:
        assert address in (LOOPBACK, "0.0.0.0", "::1")
        sock.listen()
        if address != "::1":
            for client in connect(port, 2):
                client.close()
            assert accepted(sock) == 2


def test_the_second_at_a_shared_address_has_all_who_come() -> None:
    first, (_, port) = shared_socket(LOOPBACK, 0)
    second, _ = shared_socket(LOOPBACK, port)
    with first, second:
        first.listen(100)
        second.listen(100)
        prefer_second(first)
        clients = connect(port, 40)
        assert (accepted(first), accepted(second)) == (0, 40)
        first.close()
        clients += connect(port, 10)
        assert accepted(second) == 10
        for client in clients:
            client.close()


def test_who_does_not_share_finds_the_address_taken() -> None:
    first, (_, port) = shared_socket(LOOPBACK, 0)
    with first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            OS_SOCKETS.bound(LOOPBACK, port)
