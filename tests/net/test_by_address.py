"""Connections by address: who makes room, and whose turn it is."""

from moldau.net.by_address import ByAddress


def filled(*connections: tuple[str, str]) -> ByAddress[str]:
    found: ByAddress[str] = ByAddress()
    for name, host in connections:
        found.add(name, host)
    return found


def test_the_oldest_of_the_address_with_most_makes_room():
    found = filled(("a1", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b"), ("c1", "c"))
    assert found.oldest_of_most() == "b1"
    found.remove("b1")
    assert found.oldest_of_most() == "b2"
    assert list(found.of_same("b3")) == ["b2", "b3"]


def test_addresses_take_turns():
    found = filled(("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c"))
    taken = [found.take_next() for _ in range(len(found))]
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not found


def test_addresses_of_one_ipv6_network_are_one():
    found = filled(("a", "10.0.0.1"), ("b", "2001:db8::1"), ("c", "2001:db8::2"))
    assert found.oldest_of_most() == "b"


def test_what_is_gone_takes_no_memory():
    found = filled(("a", "10.0.0.1"), ("b", "10.0.0.2"))
    for name in ("a", "a", "never there", "b"):
        found.remove(name)
    assert not found._networks
    assert not found._by_network
