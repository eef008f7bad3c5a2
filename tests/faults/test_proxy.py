"""A link does what it is told to the bytes that pass, and counts it."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from faults.proxy import Link, Proxies, socket_owner
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that answers every byte."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def link(echo: tuple[str, int]) -> Iterator[Link]:
    proxies = Proxies(seed=1)
    yield proxies.link(echo)
    proxies.close()


def dial(link: Link) -> socket.socket:
    return socket.create_connection((link.host, link.port), timeout=wait_seconds_max())


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    connection.settimeout(seconds)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(wait_seconds_max())


def test_bytes_pass_in_order_and_an_end_is_passed_on(link: Link) -> None:
    data = bytes(range(256)) * 4000
    with dial(link) as connection:
        threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
        assert receive(connection, len(data)) == data
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


@pytest.mark.safety
@pytest.mark.parametrize("way", ["forward", "back", "both"])
def test_a_cut_holds_everything_and_loses_nothing(link: Link, way: str) -> None:
    with dial(link) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        link.cut(forward=way != "back", back=way != "forward")
        connection.sendall(b"b")
        wait_until(lambda: link.counters.chunks_held, "it is held")
        assert silent(connection)
        assert link.counters.chunks_held == 1
        # What was sent in between comes after it.
        connection.sendall(b"c")
        link.heal()
        assert receive(connection, 2) == b"bc"


def test_a_cut_one_way_lets_the_other_way_pass() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    proxies = Proxies()
    try:
        link = proxies.link(listener.getsockname())
        with dial(link) as near:
            far, _ = listener.accept()
            with far:
                far.settimeout(wait_seconds_max())
                link.cut(forward=True, back=False)
                near.sendall(b"x")
                far.sendall(b"y")
                assert receive(near, 1) == b"y"
                assert silent(far)
                link.cut(forward=False, back=True)
                assert receive(far, 1) == b"x"
                far.sendall(b"z")
                assert silent(near)
    finally:
        proxies.close()
        listener.close()


def test_a_connection_to_a_cut_link_is_served_once_it_heals(link: Link) -> None:
    link.cut()
    with dial(link) as connection:
        connection.sendall(b"late")
        wait_until(lambda: link.counters.refused, "the link has seen it")
        assert silent(connection)
        link.heal()
        assert receive(connection, 4) == b"late"
    assert link.counters.refused == 1


def test_a_reset_ends_connections_with_an_error_and_the_link_goes_on(link: Link) -> None:
    with dial(link) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        assert link.reset() == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with dial(link) as connection:
        connection.sendall(b"b")
        assert receive(connection, 1) == b"b"
    assert link.counters.resets == 1


def test_a_delay_holds_each_way_and_does_not_add_up_over_chunks(link: Link) -> None:
    link.set(delay_seconds=0.1)
    with dial(link) as connection:
        started = time.monotonic()
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        assert time.monotonic() - started >= 0.2
    assert link.counters.chunks_delayed == 2


def test_stalls_happen_as_often_as_they_are_asked_for(link: Link) -> None:
    link.set(stall_chance=1.0, stall_seconds=0.05)
    with dial(link) as connection:
        for _ in range(3):
            connection.sendall(b"x")
            assert receive(connection, 1) == b"x"
    assert link.counters.stalls == 6


CALLER = """
import socket, sys
sys.stdin.readline()
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"x")
print(connection.recv(1), flush=True)
connection.sendall(b"y")
print(connection.recv(1), flush=True)
"""


def test_the_owner_of_a_connection_is_found(echo: tuple[str, int]) -> None:
    with socket.create_connection(echo) as connection:
        port = connection.getsockname()[1]
        assert socket_owner(port, {3: os.getppid(), 7: os.getpid()}) == 7
        assert socket_owner(port, {3: os.getppid()}) == -1
    assert socket_owner(1, {7: os.getpid()}) == -1


def test_a_gate_cuts_one_caller_and_not_another(echo: tuple[str, int]) -> None:
    proxies = Proxies(seed=1)
    pids = {1: os.getpid()}
    gate = proxies.gate(echo, [1, 2], lambda: pids)
    command = [sys.executable, "-c", CALLER, str(gate.port)]
    # It has no link until its pid is known.
    rogue_peer = subprocess.run(
        command, input=b"\n", capture_output=True, timeout=wait_seconds_max()
    )
    assert rogue_peer.returncode != 0
    assert gate.unknown_peers == 1
    try:
        gate.links[2].cut()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            pids[2] = other.pid
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
            mine = socket.create_connection((gate.host, gate.port), timeout=wait_seconds_max())
            with mine:
                mine.sendall(b"m")
                assert receive(mine, 1) == b"m"
            wait_until(lambda: gate.links[2].counters.refused, "the other one is held")
            assert gate.links[2].counters.refused == 1
            assert gate.links[1].counters.refused == 0
            gate.links[2].heal()
            assert other.stdout is not None
            assert other.stdout.read() == b"b'x'\nb'y'\n"
    finally:
        proxies.close()
