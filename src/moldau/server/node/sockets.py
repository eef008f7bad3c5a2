"""The sockets of the addresses that all processes of a node share.

Those of Kafka and HTTP are inherited: whichever process is idle accepts, one that hangs accepts
nothing, and while a process is restarted the others take its connections. gRPC makes its own
sockets only, so each process binds one with SO_REUSEPORT, and the system spreads connections. The
supervisor holds all of them, so that no other program takes a port of the node meanwhile.
"""

import socket
from collections.abc import Mapping
from typing import Self

from moldau.model.topology import Endpoint
from moldau.net.sockets import OS_SOCKETS
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol
from moldau.server.node.plan import Plan
from moldau.server.node.process import SharedAddress
from moldau.server.ports import cannot_listen, reachable_host


class SharedSockets:
    """Held as long as the node may start processes."""

    def __init__(self, plan: Plan) -> None:
        """Raises ConfigError."""
        self._sockets: list[socket.socket] = []
        self.addresses: Mapping[str, SharedAddress] = {}
        self.advertised: Mapping[ListenerProtocol, Endpoint] = {}
        """For clients, by protocol; of several listeners the first one."""
        try:
            for listener in plan.shared():
                self._bind(listener)
        except BaseException:
            self.close()
            raise

    def _bind(self, listener: ListenerConfig) -> None:
        wanted = listener.address
        is_inherited = listener.protocol is not ListenerProtocol.GRPC
        try:
            sock = OS_SOCKETS.bound(wanted.host, wanted.port)
            if not is_inherited:
                # The first one has shown that no other program listens there.
                port = sock.getsockname()[1]
                sock.close()
                sock = _reusable(wanted.host, port)
        except OSError as error:
            raise cannot_listen(listener.setting, wanted, error) from None
        self._sockets.append(sock)
        address = Endpoint(wanted.host, sock.getsockname()[1])
        descriptor = sock.fileno() if is_inherited else None
        self.addresses = {
            **self.addresses,
            listener.setting: SharedAddress(address, descriptor),
        }
        chosen = listener.advertised or Endpoint(reachable_host(address.host), address.port)
        found = Endpoint(chosen.host, chosen.port or address.port)
        self.advertised = {listener.protocol: found, **self.advertised}

    @property
    def inherited(self) -> list[int]:
        found = (one.descriptor for one in self.addresses.values())
        return [descriptor for descriptor in found if descriptor is not None]

    def close(self) -> None:
        """Once the processes that run end, the ports are free."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _reusable(host: str, port: int) -> socket.socket:
    """Bound so that processes of this user that ask for it may bind the address as well."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
