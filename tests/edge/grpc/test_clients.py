"""Clients of gRPC: open while they call, and a minute longer; never too many."""

from typing import Any, cast

import pytest
from fakes import Fake

from moldau.edge.grpc import clients
from moldau.edge.grpc.clients import IDLE_SECONDS_MAX, GrpcClients
from moldau.security.principal import ANONYMOUS, user

pytestmark = pytest.mark.inprocess


class Context(Fake):
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Any:
        return (("x", "y"), ("user-agent", "grpc-python/1.74.0 grpc-c/45.0 (linux)"))


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.clients = GrpcClients(lambda: self.now)

    def call(self, peer: str) -> Any:
        return self.clients.began(cast(Any, Context(peer)))

    def shown(self, most: int = 10) -> Any:
        return self.clients.open_connections(most, 1_000_000)


def test_calls_of_a_connection_are_one_client() -> None:
    world = World()
    first = world.call("ipv4:192.0.2.1:5000")
    first.entered(user("ann"))
    second = world.call("ipv4:192.0.2.1:5000")
    assert first is second
    world.now += 2
    world.clients.ended(first)
    world.now += 3
    count, (one,) = world.shown()
    assert (count, one.requests, one.idle_ms, one.opened_at_ms) == (1, 2, 0, 995_000)
    assert (one.user, one.address, one.protocol) == ("ann", "192.0.2.1:5000", "grpc")
    assert (one.software, one.version) == ("grpc-python", "1.74.0")
    world.clients.ended(second)
    world.now += 1
    assert world.shown()[1][0].idle_ms == 1000


def test_an_address_of_ipv6_is_shown_as_such() -> None:
    world = World()
    world.call("ipv6:%5B::1%5D:5000").entered(ANONYMOUS)
    (one,) = world.shown()[1]
    assert (one.address, one.user) == ("[::1]:5000", "")


def test_one_without_calls_is_gone_after_a_while() -> None:
    world = World()
    client = world.call("ipv4:192.0.2.1:5000")
    waiting = world.call("ipv4:192.0.2.2:5000")
    world.clients.ended(client)
    world.now += IDLE_SECONDS_MAX + 1
    count, (one,) = world.shown()
    assert (count, one.address) == (1, "192.0.2.2:5000")
    # Another connection from the same port.
    again = world.call("ipv4:192.0.2.1:5000")
    assert (again is client, again.requests) == (False, 1)
    world.clients.ended(waiting)


def test_their_number_is_bounded_and_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 5)
    world = World()
    for number in range(20):
        world.clients.ended(world.call(f"ipv4:192.0.2.1:{number}"))
        world.now += 1
    count, shown = world.shown(2)
    assert (count, len(shown)) == (5, 2)
    assert [one.address for one in shown] == ["192.0.2.1:15", "192.0.2.1:16"]
