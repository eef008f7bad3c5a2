"""Ports are taken before anybody listens, and told as others reach them."""

import socket

import pytest

from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.server.ports import ReservedPort
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

LOOPBACK = "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """As a listener takes the place of a port that is held for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen()
    return sock


def test_port_0_is_a_free_one_and_reported_by_its_number() -> None:
    with ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None) as port:
        assert port.port > 0
        assert port.advertised == Endpoint(LOOPBACK, port.port)
        assert port.address == Endpoint(LOOPBACK, port.port)


def test_two_brokers_never_get_the_same_free_port() -> None:
    ports = [ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None) for _ in range(50)]
    assert len({port.port for port in ports}) == len(ports)
    for port in ports:
        port.release()


def test_a_taken_port_is_a_clear_error_with_the_way_out() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on .*{number} \(raft\.addr\)") as e:
            ReservedPort("raft.addr", Endpoint(LOOPBACK, number), None)
    assert "moldau doctor" in e.value.hint
    assert f"--set raft.addr={LOOPBACK}:PORT" in e.value.hint


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:9092 \(http\.addr\)"):
        ReservedPort("http.addr", Endpoint("192.0.2.1", 9092), None)


def test_no_client_can_connect_before_a_server_listens() -> None:
    with (
        ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None) as port,
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection((LOOPBACK, port.port), wait_seconds_max())


def test_the_listener_takes_the_place_of_its_holder() -> None:
    port = ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None)
    with listen(LOOPBACK, port.port) as sock:
        port.release()
        with socket.create_connection((LOOPBACK, port.port), wait_seconds_max()):
            assert sock.accept()


def test_of_two_that_hold_the_same_port_only_one_can_listen() -> None:
    with ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None) as first:
        ReservedPort("kafka.addr", first.address, None).release()
        with listen(LOOPBACK, first.port), pytest.raises(ConfigError):
            ReservedPort("kafka.addr", first.address, None)


def test_what_is_advertised_is_reported_and_not_what_is_listened_on() -> None:
    told = Endpoint("queue.example.org", 443)
    with ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), told) as port:
        assert port.advertised == Endpoint("queue.example.org", 443)
        assert port.address.host == LOOPBACK


def test_an_advertised_port_0_is_the_one_that_was_taken() -> None:
    with ReservedPort(
        "kafka.addr", Endpoint(LOOPBACK, 0), Endpoint("queue.example.org", 0)
    ) as port:
        assert port.advertised == Endpoint("queue.example.org", port.port)


def test_every_interface_is_reported_as_this_machine() -> None:
    with ReservedPort("kafka.addr", Endpoint("0.0.0.0", 0), None) as port:
        assert port.advertised == Endpoint(socket.gethostname(), port.port)


def test_a_second_listener_is_refused_as_such() -> None:
    with ReservedPort("kafka.addr", Endpoint(LOOPBACK, 0), None) as port:
        second = socket.socket()
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        second.bind((LOOPBACK, port.port))
        with second, listen(LOOPBACK, port.port):
            with pytest.raises(ConfigError, match=r"\(kafka\.addr\)") as caught:
                port.listen(second.listen)
            assert "moldau doctor" in caught.value.hint
