"""The addresses that all processes of a node share."""

import socket

import pytest

from moldau.model.errors import ConfigError
from moldau.server.config.load import load_config
from moldau.server.config.security_schema import ListenerProtocol
from moldau.server.node.plan import Plan, make_plan
from moldau.server.node.sockets import SharedSockets
from moldau.testing.ports import free_ports

pytestmark = pytest.mark.inprocess


def plan(*ports: int) -> Plan:
    names = ("kafka.addr", "raft.addr", "http.addr", "grpc.addr")
    flags = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    return make_plan(load_config(flags, {}).config, 2)


def test_kafka_and_http_are_inherited_and_grpc_is_bound_again():
    with SharedSockets(plan(0, 0, 0, 0)) as sockets:
        assert len(sockets.inherited) == 2
        grpc = sockets.addresses["grpc.addr"]
        assert grpc.accepting() is None
        with socket.socket() as other:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                other.setsockopt(socket.SOL_SOCKET, option, 1)
            other.bind(grpc.address)
            other.listen()


def test_two_that_accept_at_an_inherited_socket_share_its_connections():
    with SharedSockets(plan(0, 0, 0, 0)) as sockets:
        kafka = sockets.addresses["kafka.addr"]
        # Nothing listens before a process does: clients retry.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(kafka.address)
        first, second = kafka.accepting(), kafka.accepting()
        assert first is not None
        assert second is not None
        first.listen()
        first.close()
        with second, socket.create_connection(kafka.address), second.accept()[0] as accepted:
            assert accepted.getsockname() == tuple(kafka.address)
        assert sockets.advertised[ListenerProtocol.KAFKA] == kafka.address
    # The node has ended, and its ports are free.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(kafka.address)


@pytest.mark.parametrize("place", range(3))
def test_a_port_that_another_program_listens_at_is_refused(place):
    ports = free_ports(3)
    kafka, http, grpc = ports
    with (
        socket.create_server(("127.0.0.1", ports[place])),
        pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{ports[place]}"),
    ):
        SharedSockets(plan(kafka, 0, http, grpc))
