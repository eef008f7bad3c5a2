"""What one client has of addresses: the key of every bound per address."""

import ipaddress
from functools import lru_cache
from typing import Final

_IPV6_NETWORK_BITS: Final = 64
"""The smallest network that providers give to one customer, who may use any address of it."""


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Of IPv6, all of a network; all other names and addresses stay as they are."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
    return host
