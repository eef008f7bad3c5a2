"""Owns free ports of loopback for brokers that keep them over their restarts."""

import random
import socket
from typing import Final

_FIRST: Final = 20_000
_LAST: Final = 32_000
"""Below the range from which the system takes ports for outgoing connections: a broker that is
down finds its port free when it comes back."""
_TRIES_MAX: Final = 1_000
_choice = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Some ports that nobody listens on now, each another."""
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = _choice.randint(_FIRST, _LAST)
        if port not in found and _is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
