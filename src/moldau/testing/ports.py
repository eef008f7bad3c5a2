"""Free loopback ports for brokers that keep them over restarts.

While a broker is down its port looks free. So a process reserves it for the other test processes
by locking one byte of a shared file.
"""

import fcntl
import os
import random
import re
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

_FIRST: Final = 20_000
_LAST: Final = 32_000
"""Below the system's range for outgoing connections, which could take the port of a broker that is
down; and above the ports that `moldau cluster start` finds by itself, which knows no claims."""
_SHARES: Final = 8
"""Parallel test processes use separate ranges."""
_TRIES_MAX: Final = 1_000
_HELD_MAX: Final = 400
"""Ports that a process keeps reserved: those of its last hundred brokers."""


def _shuffled() -> Iterator[int]:
    """Ports of this process in random order; each is used once before any is used again."""
    worker = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    share = int(worker[0]) % _SHARES if worker else 0
    shares = _SHARES if worker else 1
    size = (_LAST - _FIRST) // shares
    ports = list(range(_FIRST + share * size, _FIRST + (share + 1) * size))
    random.SystemRandom().shuffle(ports)
    return cycle(ports)


_upcoming: Iterator[int] = _shuffled()


class _Claims:
    """The bytes that this process has locked; the system unlocks them when it ends."""

    def __init__(self) -> None:
        # Open now, not on first use, which would look like a file leak of that test.
        self._open()

    def _open(self) -> None:
        path = Path(tempfile.gettempdir()) / f"moldau-ports-{os.getuid()}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._owner = os.getpid()
        self._held: deque[int] = deque()

    def claim(self, port: int) -> bool:
        if self._owner != os.getpid():
            # After a fork: the locks belong to the parent process.
            self._open()
        if port in self._held:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self._held.append(port)
        if len(self._held) > _HELD_MAX:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._held.popleft())
        return True


_claims: Final = _Claims()


def free_ports(count: int) -> list[int]:
    """Distinct ports that are unused now and not reserved by another test process."""
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return found
        port = next(_upcoming)
        if port not in found and _claims.claim(port) and _is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports between {_FIRST} and {_LAST}")


def free_port_run(count: int) -> int:
    """The first of some free ports that follow each other; all of them are reserved."""
    for _ in range(_TRIES_MAX):
        first = next(_upcoming)
        ports = range(first, min(first + count, _LAST))
        if len(ports) == count and all(_claims.claim(port) and _is_free(port) for port in ports):
            return first
    raise OSError(f"no {count} free ports in a row between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
