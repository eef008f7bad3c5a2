"""The ports of a cluster on one machine."""

import socket

import pytest

from moldau.cli.cluster.start import prepare
from moldau.supervisor.ports import complete_ports, nth_ports, plan_ports
from moldau.supervisor.state import Member, Ports, load_state, save_state
from moldau.testing.ports import free_ports

pytestmark = pytest.mark.inprocess


def test_every_listener_of_a_broker_has_a_port_of_its_own():
    ports = Ports(kafka=0, raft=0, http=0, grpc=0)
    planned = plan_ports([(1, ports), (2, ports)])
    found = [port for of_broker in planned for port in vars_of(of_broker).values()]
    assert len(set(found)) == 8
    assert 0 not in found


def vars_of(ports: Ports) -> dict[str, int]:
    return {name: getattr(ports, name) for name in ports.__struct_fields__}


def test_the_ports_of_the_nth_broker_follow_those_of_the_first():
    first = Ports(kafka=9092, raft=19092, http=8080, grpc=8000)
    assert nth_ports(first, 3) == Ports(kafka=9094, raft=19094, http=8082, grpc=8002)
    assert nth_ports(Ports(kafka=0, raft=5, http=0, grpc=0), 2) == Ports(kafka=0, raft=6, http=0)


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        return listener.connect_ex(("127.0.0.1", port)) != 0


def http_port() -> int:
    """One that is free, as is the port that gRPC has beside it."""
    return next(port for port in iter(lambda: free_ports(1)[0], None) if is_free(port - 80))


def test_the_port_of_grpc_goes_along_with_that_of_http_unless_it_is_said(tmp_path):
    http, (said,) = http_port(), free_ports(1)
    for name, given, expected in (
        ("along", (0, 0, http, None), http - 80),
        ("said", (0, 0, 0, said), said),
    ):
        (tmp_path / name).mkdir()
        state = prepare(tmp_path / name, 1, given, ())
        assert state.brokers[0].ports.grpc == expected
        assert state.brokers[0].grpc == f"127.0.0.1:{expected}"
    (tmp_path / "free").mkdir()
    assert prepare(tmp_path / "free", 1, (0, 0, 0, None), ()).brokers[0].ports.grpc > 0


def test_the_same_draw_twice_gives_two_ports(monkeypatch):
    first, second = free_ports(2)
    draws = iter((first, first, second))
    monkeypatch.setattr("moldau.supervisor.ports.random.randint", lambda *_: next(draws))
    members = [Member(id=n, ports=Ports(kafka=n, raft=0, http=0), directory="") for n in (1, 2)]
    complete_ports(members)
    assert [member.ports.grpc for member in members] == [first, second]


def test_a_cluster_from_before_there_was_grpc_gets_ports_for_it_and_keeps_them(tmp_path):
    state = prepare(tmp_path, 2, (0, 0, 0, 0), ())
    for member in state.brokers:
        ports = member.ports
        member.ports = Ports(kafka=ports.kafka, raft=ports.raft, http=ports.http)
    save_state(tmp_path, state)
    again = prepare(tmp_path, None, (None, None, None, None), ())
    found = [member.ports.grpc for member in again.brokers]
    assert 0 not in found
    assert len(set(found)) == 2
    kept = load_state(tmp_path)
    assert kept is not None
    assert [member.ports.grpc for member in kept.brokers] == found


def test_ports_that_are_there_stay_when_others_are_completed():
    known = Ports(kafka=1, raft=2, http=3, grpc=4)
    members = [
        Member(id=1, ports=known, directory="a"),
        Member(id=2, ports=Ports(kafka=5, raft=6, http=7), directory="b"),
    ]
    complete_ports(members)
    assert members[0].ports == known
    assert (members[1].ports.kafka, members[1].ports.http) == (5, 7)
    assert members[1].ports.grpc > 0
