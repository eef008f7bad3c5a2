"""Owns the port through which connections reach the operating system.

Small on purpose: the simulator has sockets of its own, which lose, delay and cut what is sent.
"""

import select
import socket
from collections.abc import Iterable
from typing import Final


class Sockets:
    """Those of the machine."""

    def bound(self, host: str, port: int) -> socket.socket:
        """One that holds the address (port 0: a free one) and does not listen. Raises OSError."""
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
        """One to dial with. Raises OSError."""
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        return sock

    def broken(self, descriptors: Iterable[int]) -> list[int]:
        """Those whose other side has reset the connection."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, 0)
        return [descriptor for descriptor, _ in poller.poll(0)]


OS_SOCKETS: Final = Sockets()
