"""Owns free ports of loopback for brokers that keep them over their restarts."""

import os
import random
import re
import socket
from collections.abc import Iterator
from itertools import cycle
from typing import Final

_FIRST: Final = 20_000
_LAST: Final = 32_000
"""Below the range from which the system takes ports for outgoing connections: a broker that is
down finds its port free when it comes back."""
_SHARES: Final = 8
"""Test processes that run side by side take from ranges of their own."""
_TRIES_MAX: Final = 1_000


def _shuffled() -> Iterator[int]:
    """Ports of this process, each once before any comes again: a broker that is not up yet, or down
    for a while, has its port all the same."""
    worker = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    share = int(worker[0]) % _SHARES if worker else 0
    shares = _SHARES if worker else 1
    size = (_LAST - _FIRST) // shares
    ports = list(range(_FIRST + share * size, _FIRST + (share + 1) * size))
    random.SystemRandom().shuffle(ports)
    return cycle(ports)


_upcoming: Iterator[int] = _shuffled()


def free_ports(count: int) -> list[int]:
    """Some ports that nobody listens on now, each another."""
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = next(_upcoming)
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
