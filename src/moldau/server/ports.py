"""Owns the addresses of a broker's listeners before anybody listens there.

A broker tells its cluster where it is reached before it serves anything. So its ports are taken
first, port 0 by whatever is free, and kept by a socket that does not listen until the listener has
taken its place: with SO_REUSEADDR, two sockets may hold an address as long as neither listens.
"""

import errno
import socket
from collections.abc import Callable
from typing import Self

from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.server.config.schema import Address

_ANY_HOSTS = frozenset({"0.0.0.0", "::", ""})


class ReservedPort:
    """One address, taken."""

    def __init__(
        self,
        key: str,
        address: Address,
        advertised: Address | None,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`key` is the setting that names it. Raises ConfigError."""
        try:
            self._socket = sockets.bound(address.host, address.port)
        except OSError as error:
            raise _failure(key, address, error) from None
        self.key = key
        self.host: str = address.host
        self.port: int = self._socket.getsockname()[1]
        told = advertised or Address(_reachable(address.host), self.port)
        self.told = Endpoint(told.host, told.port or self.port)
        """The address that others are told."""

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def listen(self, begin: Callable[[], None]) -> None:
        """Let the listener begin to. Raises ConfigError if somebody else was quicker."""
        try:
            begin()
        except OSError as error:
            raise _failure(self.key, self.address, error) from None

    def release(self) -> None:
        """The listener has it now."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _reachable(host: str) -> str:
    return socket.gethostname() if host in _ANY_HOSTS else host


def _failure(key: str, address: Address, error: OSError) -> ConfigError:
    failure = ConfigError(f"cannot listen on {address} ({key}): {error.strerror or error}")
    if error.errno == errno.EADDRINUSE:
        failure.hint = (
            f"who is there? moldau doctor · another port: --set {key}={address.host}:PORT"
        )
    return failure
