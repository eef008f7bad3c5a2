"""HTTP over TLS: certificates that change, clients with certificates, and hostile handshakes."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from tls_world import TlsWorld

from http_cluster import Served, served
from moldau.edge.http.limits import HttpLimits
from moldau.server.clock import SystemClock
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@contextmanager
def connected(port: int, context: ssl.SSLContext) -> Iterator[HTTPSConnection]:
    connection = HTTPSConnection("localhost", port, timeout=wait_seconds_max(), context=context)
    with closing(connection):
        yield connection


def ask(connection: HTTPSConnection, path: str = "/readyz") -> tuple[int, Any]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def serial(connection: HTTPSConnection) -> str:
    sock = connection.sock
    assert isinstance(sock, ssl.SSLSocket)
    found = sock.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


@pytest.fixture
def world(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path)


@contextmanager
def https(world: TlsWorld, **limits: Any) -> Iterator[Served]:
    with served(limits=HttpLimits(**limits), tls=world.contexts()) as found:
        yield found


def test_requests_are_served_over_tls(world):
    with https(world) as found, connected(found.port, world.client()) as connection:
        assert ask(connection)[0] == 200
        assert ask(connection, "/api/v1/topology")[0] == 200


def test_connections_that_only_wait_make_room_for_newcomers(world):
    with ExitStack() as stack:
        found = stack.enter_context(https(world, connections_max=2, keep_alive_seconds_max=600))
        made = [stack.enter_context(connected(found.port, world.client())) for _ in range(3)]
        for connection in made:
            assert ask(connection)[0] == 200
        assert is_reset(made[0])
        for connection in made[1:]:
            assert ask(connection)[0] == 200


def is_reset(connection: HTTPSConnection) -> bool:
    try:
        return not connection.sock.recv(1)
    except (ConnectionResetError, ssl.SSLEOFError):
        return True


def test_a_new_certificate_is_used_at_once_and_ends_no_connection(world):
    tls = world.contexts()
    with served(tls=tls) as found, connected(found.port, world.client()) as old:
        assert ask(old)[0] == 200
        world.renew()
        assert tls.reload()
        with connected(found.port, world.client()) as new:
            assert ask(new)[0] == 200
            assert serial(new) != serial(old)
        assert ask(old)[0] == 200


def test_a_client_that_trusts_another_authority_is_logged_and_others_are_served(world, caplog):
    with https(world) as found:
        with (
            pytest.raises(ssl.SSLError),
            connected(found.port, ssl.create_default_context()) as bad,
        ):
            ask(bad)
        wait_until(lambda: "does not trust the certificate" in caplog.text, "the failure is logged")
        with connected(found.port, world.client()) as connection:
            assert ask(connection)[0] == 200


def test_plain_http_is_answered_in_plain_http(world):
    with https(world) as found:
        with found.connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            reply = b"".join(iter(lambda: sock.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"use https://" in reply


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_an_unfinished_handshake_is_ended(world, sent):
    with https(world, request_seconds_max=0.3) as found, found.connect() as sock:
        sock.sendall(sent)
        assert is_ended(sock)


def is_ended(sock: socket.socket) -> bool:
    try:
        return b"".join(iter(lambda: sock.recv(65536), b""))[7:] == b""
    except ConnectionError:
        return True


def test_handshakes_beyond_a_bound_end_the_oldest_and_shut_nobody_out(world):
    with (
        https(world, connections_max=20, request_seconds_max=600.0) as found,
        ExitStack() as stack,
    ):
        held = [stack.enter_context(found.connect()) for _ in range(60)]
        with connected(found.port, world.client()) as connection:
            assert ask(connection)[0] == 200
        assert is_ended(held[0])


def test_new_connections_of_one_address_have_a_rate(world, caplog):
    with https(world, tls_per_second_per_address_max=1.0) as found:

        def is_refused() -> bool:
            with found.connect():
                return "limit of 1 connections per second reached" in caplog.text

        wait_until(is_refused, "the limit is reached")


def test_what_is_not_tls_after_its_first_byte_harms_nobody(world):
    with https(world) as found:
        with found.connect() as sock:
            sock.sendall(b"\x16" + b"garbage" * 100)
            is_ended(sock)
        with connected(found.port, world.client()) as connection:
            assert ask(connection)[0] == 200


def test_a_stop_ends_handshakes_in_progress(world):
    with https(world) as found:
        sock = found.connect()
        sock.sendall(b"\x16\x03\x01")
    with sock:
        assert is_ended(sock)


def test_a_connection_ends_with_the_certificate_of_its_client(world, monkeypatch):
    context = world.client(world.client_files())
    with served(tls=world.contexts(mtls=True)) as found, connected(found.port, context) as client:
        assert ask(client)[0] == 200
        two_days_later = SystemClock().wall_ms() + 2 * 24 * 3600 * 1000
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: two_days_later)
        with pytest.raises(ConnectionError):
            ask(client)


def test_a_certificate_that_cannot_be_parsed_ends_the_connection(world):
    context = world.client(world.odd_client_files())
    with served(tls=world.contexts(mtls=True)) as found:
        with pytest.raises(ConnectionError), connected(found.port, context) as client:
            ask(client)
        with connected(found.port, world.client(world.client_files())) as client:
            assert ask(client)[0] == 200


def test_a_client_certificate_is_a_user(world):
    """With mTLS, HTTP needs no password, and rights are those of the certificate's subject."""
    settings = {
        "HTTP__SECURITY": "mtls",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
        "SECURITY__SUPER_USERS": "User:CN=boss",
    }
    with Broker(settings=settings) as broker:
        for name, status in (("boss", 200), ("alice", 403)):
            context = world.client(world.client_files(name))
            with connected(broker.http_port, context) as connection:
                connection.request("GET", "/metrics")
                response = connection.getresponse()
                response.read()
                assert response.status == status, name
                assert ask(connection, "/api/v1/topics")[0] == 200
        with pytest.raises(OSError), connected(broker.http_port, world.client()) as nobody:
            ask(nobody)
