"""The key of bounds per address: a client of IPv6 has more than one of them."""

import pytest

from moldau.net.networks import network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2::3", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("no address", "no address"),
        ("2001:db8::/64", "2001:db8::/64"),
    ],
)
def test_addresses_that_one_client_has_are_one(host, network):
    assert network_of(host) == network
