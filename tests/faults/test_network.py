"""The same words mean the same in every network that a run can have."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from faults.namespaces import cannot_use_namespaces
from faults.network import CLIENTS, Network, ProxyNetwork, SpaceNetwork, make_network

pytestmark = pytest.mark.system


@pytest.fixture(params=["namespaces", "proxies"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    if request.param == "namespaces" and (missing := cannot_use_namespaces()):
        pytest.skip(missing)
    made = make_network(request.param, 2)
    yield made
    made.close()


def test_every_broker_has_addresses_of_its_own(network: Network) -> None:
    places = [network.place(number) for number in (1, 2)]
    addresses = {address for place in places for address in (place.kafka, place.raft, place.http)}
    assert len(addresses) == 6
    assert network.kind in ("namespaces", "proxies")
    if isinstance(network, ProxyNetwork):
        assert set(network.clients) == {1, 2}
        assert (1, 2) in network.peers
        assert (2, 1) in network.peers


def test_a_network_as_it_is_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="cannot be cut"):
        make_network("direct", 1).cut("b1", "b2")


def test_a_cut_of_one_way_is_a_cut_of_that_way_alone() -> None:
    network = ProxyNetwork(peers=True)
    try:
        for number in (1, 2):
            network.place(number)
        network.cut("b1", "b2", both=False)
        assert network.peers[1, 2].conditions.cut_forward
        assert not network.peers[2, 1].conditions.cut_forward
        network.cut("b2", CLIENTS, both=False)
        assert network.clients[2].conditions.cut_back
        assert not network.clients[2].conditions.cut_forward
        network.heal()
        assert not network.peers[1, 2].conditions.cut_forward
        network.cut("b1", "b2")
        assert network.peers[2, 1].conditions.cut_forward
        # Nobody has tried to say anything yet.
        assert network.proof("b1", "b2", 0) == ""
    finally:
        network.close()


def test_the_harness_reaches_a_broker_in_its_namespace_whatever_is_cut() -> None:
    if missing := cannot_use_namespaces():
        pytest.skip(missing)
    network = SpaceNetwork(2)
    try:
        place = network.place(1)
        network.cut("b1", "b2")
        network.cut("b1", CLIENTS)
        with pytest.raises(ConnectionRefusedError):
            network.connect(place.http)
    finally:
        network.close()


def test_connections_of_the_harness_are_ordinary_ones_without_namespaces() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as accepted:
                accepted.sendall(b"x")

        threading.Thread(target=serve, daemon=True).start()
        with Network().connect(f"127.0.0.1:{listener.getsockname()[1]}") as connection:
            assert connection.recv(1) == b"x"
