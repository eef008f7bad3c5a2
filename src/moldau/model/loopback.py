"""Which addresses mean this machine, and no other."""

import functools
import ipaddress


@functools.lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach it, and what is sent there stays here."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def reaches_loopback(host: str) -> bool:
    """Whether a client that connects to it reaches this machine. Addresses to listen on, such as
    0.0.0.0, do, too."""
    if is_loopback(host):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
