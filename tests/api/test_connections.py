"""Connections of any broker: of this one, of another by RPC, and of none that is not there."""

from types import SimpleNamespace

import msgspec
import pytest
from fakes import Fake

from harness.virtual_loop import run_virtually
from moldau.api import connections
from moldau.api.connections import ConnectionList, Connections, ConnectionShown
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod


def one(address: str, opened_at_ms: int = 1) -> ConnectionShown:
    return ConnectionShown(
        client_id="c",
        software="s",
        version="1",
        user="",
        address=address,
        listener="kafka",
        protocol="kafka",
        opened_at_ms=opened_at_ms,
        requests=2,
        bytes_in=3,
        bytes_out=4,
        throttled_ms=0,
        errors=0,
        idle_ms=5,
    )


class Source:
    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        return len(self.addresses), [one(each) for each in self.addresses[:most]]


class World(Fake):
    """Broker 1 of 1, 2 and 3, of which 3 is down."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(brokers={1: None, 2: None, 3: None})
        self.alive = frozenset({1, 2})
        self.answer: bytes | RefusedError = b""
        self.connections = Connections(
            me=BrokerId(1),
            cluster=self,
            caller=self,
            clock=self,
            sources=lambda: (Source("a", "b"), None, Source("c")),
        )

    def wall_ms(self):
        return 1000

    async def call(self, peer, method, payload, timeout_seconds):
        assert (peer, method) == (2, PeerMethod.LIST_CONNECTIONS)
        if isinstance(self.answer, RefusedError):
            raise self.answer
        return self.answer


def test_the_own_ones_are_those_of_all_listeners():
    found = run_virtually(World().connections.of(1))
    assert [each.address for each in found.connections] == ["a", "b", "c"]
    assert (found.broker, found.count, found.is_cut) == (1, 3, False)


def test_of_too_many_the_number_is_exact(monkeypatch):
    monkeypatch.setattr(connections, "SHOWN_MAX", 1)
    found = run_virtually(World().connections.of(1))
    assert [each.address for each in found.connections] == ["a"]
    assert (found.count, found.is_cut) == (3, True)


def test_the_oldest_come_first_whatever_their_protocol():
    world = World()
    found = [one("new", 3), one("old", 1), one("middle", 2)]

    class Mixed:
        def open_connections(self, most, wall_ms):
            return 3, list(found)

    world.connections = Connections(
        me=BrokerId(1), cluster=world, caller=world, clock=world, sources=lambda: (Mixed(),)
    )
    listed = run_virtually(world.connections.of(1)).connections
    assert [each.address for each in listed] == ["old", "middle", "new"]


def test_another_broker_is_asked():
    world = World()
    world.answer = run_virtually(world.connections.on_request(BrokerId(2), b""))
    found = run_virtually(world.connections.of(2))
    assert found == msgspec.msgpack.decode(world.answer, type=ConnectionList)
    assert found.count == 3


@pytest.mark.parametrize(
    ("broker", "answer", "code"),
    [
        (9, b"", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (3, b"", ErrorCode.BROKER_NOT_AVAILABLE),
        (2, b"nonsense", ErrorCode.UNKNOWN_SERVER_ERROR),
        (2, RefusedError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_who_cannot_answer_is_named(broker, answer, code):
    world = World()
    world.answer = answer
    with pytest.raises(RefusedError) as refused:
        run_virtually(world.connections.of(broker))
    assert refused.value.code is code
