"""Owns how a TCP address is taken, before anybody listens there."""

import socket


def bound_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket that holds the address (port 0: a free one) and does not listen. Raises OSError.

    `is_shared`: others of this user that say so too may listen there at the same time.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
