"""Owns how a TCP address is shared by two that listen there."""

import contextlib
import ctypes
import socket
import struct
from typing import Final

_ATTACH_REUSEPORT_CBPF: Final = 51
_RETURN: Final = 0x06
"""Linux's numbers: SO_ATTACH_REUSEPORT_CBPF, and BPF_RET of a constant."""


def shared_socket(host: str, port: int) -> tuple[socket.socket, tuple[str, int]]:
    """A socket that holds the address (port 0: a free one), and the address as numbers; others of
    this user that say so too may listen there at the same time. Raises OSError.

    Of both kinds of IP where there are both, as gRPC opens its own: to the system, only those of
    the same kind share an address.
    """
    family, kind, protocol, _, name = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    address = str(name[0])
    if family == socket.AF_INET:
        mapped = "::" if address == "0.0.0.0" else f"::ffff:{address}"
        with contextlib.suppress(OSError):
            sock = _share(socket.AF_INET6, kind, protocol, mapped, port)
            return sock, (address, sock.getsockname()[1])
    sock = _share(family, kind, protocol, address, port)
    return sock, (address, sock.getsockname()[1])


def _share(
    family: socket.AddressFamily, kind: int, protocol: int, address: str, port: int
) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def prefer_second(sock: socket.socket) -> None:
    """Of two that listen at a shared address, let the one that began later have all who come.

    The system spreads them over both by a filter, and this is one that always says: the second.
    Where there are no such filters, both go on to be found.
    """
    program = ctypes.create_string_buffer(struct.pack("@HBBI", _RETURN, 0, 0, 1))
    filter_of_one = struct.pack("@HP", 1, ctypes.addressof(program))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, filter_of_one)
