"""Reserves the ports of a broker's listeners before they listen.

A broker announces its addresses to the cluster before it serves requests. So each port is bound
first (port 0: any free one) by a socket that does not listen, until the listener has bound it too:
with SO_REUSEADDR, two sockets may bind an address while neither listens.
"""

import errno
import socket
from collections.abc import Callable, Mapping
from typing import Protocol, Self

from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint, Listeners
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.server.config.listeners import listeners_for
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol
from moldau.server.node.process import SharedAddress


class Bindable(Protocol):
    """A listener."""

    def bind(self, host: str, port: int) -> object: ...

    def share(self, sock: socket.socket) -> None: ...


_ANY_HOSTS = frozenset({"0.0.0.0", "::", ""})


class ReservedPort:
    def __init__(
        self,
        key: str,
        address: Endpoint,
        advertised: Endpoint | None,
        sockets: Sockets = OS_SOCKETS,
        shared: SharedAddress | None = None,
    ) -> None:
        """`key` is the setting of the address; `shared` is a second one, at which all processes of
        the node accept. Raises ConfigError."""
        try:
            self._socket = sockets.bound(address.host, address.port)
        except OSError as error:
            raise cannot_listen(key, address, error) from None
        self.key = key
        self.shared = shared
        self.host: str = address.host
        self.port: int = self._socket.getsockname()[1]
        chosen = advertised or Endpoint(reachable_host(address.host), self.port)
        self.advertised = Endpoint(chosen.host, chosen.port or self.port)
        """The address for clients and other brokers."""

    @property
    def address(self) -> Endpoint:
        return Endpoint(self.host, self.port)

    def bind(self, listener: Bindable) -> None:
        """To this address, and to that of the node. Raises OSError."""
        listener.bind(self.host, self.port)
        if self.shared is not None and (sock := self.shared.accepting()) is not None:
            listener.share(sock)

    def listen(self, begin: Callable[[], None]) -> None:
        """Start the listener. Raises ConfigError if another process took the port."""
        try:
            begin()
        except OSError as error:
            raise cannot_listen(self.key, self.address, error) from None

    def release(self) -> None:
        """Release the reservation: the listener has bound the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class ReservedPorts:
    """The ports of all listeners of a broker."""

    def __init__(
        self,
        config: ServerConfig,
        sockets: Sockets,
        shared: Mapping[str, SharedAddress] | None = None,
    ) -> None:
        self._config = config
        self._sockets = sockets
        self._shared = shared or {}
        self._ports: list[ReservedPort] = []

    def reserve(self, protocol: ListenerProtocol) -> list[ReservedPort]:
        """Raises ConfigError."""
        return [self._reserve(listener) for listener in listeners_for(self._config, protocol)]

    def _reserve(self, listener: ListenerConfig) -> ReservedPort:
        key, address = listener.setting, listener.address
        port = ReservedPort(key, address, listener.advertised, self._sockets, self._shared.get(key))
        for other in self._ports:
            if other.address == port.address:
                port.release()
                raise ConfigError(f"{other.key} and {key} are both {address}; use different ports")
        self._ports.append(port)
        return port

    def named_listeners(self) -> Listeners:
        """The addresses of several Kafka listeners; clients of one stay on it."""
        if not self._config.listeners:
            return ()
        advertised = {port.key: port.advertised for port in self._ports}
        found = listeners_for(self._config, ListenerProtocol.KAFKA)
        return tuple((one.name, advertised[one.setting]) for one in found)

    def host_names(self) -> list[str]:
        """The names of this broker, of all its listeners: people use one name for all of them."""
        return [end.host for port in self._ports for end in (port.address, port.advertised)]

    def release(self) -> None:
        """Release the reservations that are left. May be called twice."""
        for port in self._ports:
            port.release()


def reachable_host(host: str) -> str:
    """What is advertised for a bound host, if nothing else is set."""
    return socket.gethostname() if host in _ANY_HOSTS else host


def cannot_listen(key: str, address: Endpoint, error: OSError) -> ConfigError:
    failure = ConfigError(f"cannot listen on {address} ({key}): {error.strerror or error}")
    if error.errno == errno.EADDRINUSE:
        failure.hint = (
            f"what uses it? moldau doctor --set {key}={address} · use another port: "
            f"--set {key}={address.host}:PORT"
        )
    return failure
