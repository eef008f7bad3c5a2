"""Creates the sockets of connections and listeners.

Kept small: the simulator replaces it with sockets that lose, delay and truncate data.
"""

import select
import socket
from collections.abc import Iterable
from typing import Final


class Sockets:
    """The sockets of the operating system."""

    def bound(self, host: str, port: int) -> socket.socket:
        """A socket bound to the address (port 0: any free one), not listening. Raises OSError."""
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    def unconnected(self, family: int, kind: int, protocol: int) -> socket.socket:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        return sock

    def broken(self, descriptors: Iterable[int]) -> list[int]:
        """The descriptors whose connection was reset by the other side."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, 0)
        return [descriptor for descriptor, _ in poller.poll(0)]


OS_SOCKETS: Final = Sockets()
