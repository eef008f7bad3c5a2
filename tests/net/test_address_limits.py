"""Connections of one address: at a time, and per second."""

from moldau.net.address_limits import AddressLimits
from moldau.net.address_rates import AddressRates
from moldau.testing.replicas import ManualClock


def test_an_address_has_so_many_connections_and_others_have_their_own():
    limits = AddressLimits(2)
    for _ in range(2):
        assert limits.refusal("a") == ""
        limits.opened("a")
    assert limits.refusal("a") == "limit of 2 connections per address reached"
    assert limits.refusal("b") == ""
    limits.closed("a")
    assert limits.refusal("a") == ""


def test_new_connections_have_a_rate():
    clock = ManualClock()
    limits = AddressLimits(1000, AddressRates(10, clock))
    while not (reason := limits.refusal("a")):
        pass
    assert reason == "limit of 10 connections per second reached"
    clock.steady += 0.5
    assert limits.refusal("a") == ""


def test_closed_addresses_take_no_memory():
    limits = AddressLimits(10)
    for number in range(100):
        limits.refusal(str(number))
        limits.opened(str(number))
        limits.closed(str(number))
    assert not limits._open


def test_a_client_of_ipv6_has_one_share_for_all_its_addresses():
    limits = AddressLimits(2, AddressRates(1000, ManualClock()))
    for host in ("2001:db8::1", "2001:db8::2"):
        assert limits.refusal(host) == ""
        limits.opened(host)
    assert limits.refusal("2001:db8::3") == "limit of 2 connections per address reached"
    assert limits.refusal("2001:db8:0:1::3") == ""
    limits.closed("2001:db8::1")
    assert limits.refusal("2001:db8::3") == ""
    limits.closed("2001:db8::2")
    assert not limits._open
