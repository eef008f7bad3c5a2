"""New connections per second and address: a burst is allowed, then the rate."""

from moldau.net.address_rates import AddressRates
from moldau.testing.replicas import ManualClock


def test_a_burst_is_allowed_and_then_the_rate():
    clock = ManualClock()
    rates = AddressRates(10, clock)
    assert sum(rates.allows("a") for _ in range(100)) == 20
    clock.steady += 1.0
    assert sum(rates.allows("a") for _ in range(100)) == 10
    clock.steady += 3600.0
    assert sum(rates.allows("a") for _ in range(100)) == 20


def test_each_address_has_its_own_rate():
    rates = AddressRates(1, ManualClock())
    while rates.allows("a"):
        pass
    assert rates.allows("b")


def test_a_flood_of_addresses_does_not_fill_the_memory():
    rates = AddressRates(1, ManualClock())
    for number in range(20_000):
        rates.allows(str(number))
    assert len(rates._buckets) <= 4096


def test_addresses_of_one_ipv6_network_have_one_rate():
    rates = AddressRates(1, ManualClock())
    assert [rates.allows(f"2001:db8::{number:x}") for number in range(4)].count(True) == 2
    assert rates.allows("2001:db8:0:1::1")
