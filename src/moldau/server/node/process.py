"""What one process of a node knows of it: its number, its own configuration, what all share.

The supervisor plans it and hands it over on stdin, so that all processes of a node have the same
configuration, also one that is restarted after a file was changed.
"""

import os
import pickle
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from moldau.model.topology import Endpoint
from moldau.server.config.schema import ServerConfig

SOCKET_NAME: Final = "node.sock"
"""In the data directory of each process: where the others of its node ask it."""
_HEAD: Final = b"moldau process of a node\n"
"""Before what the supervisor hands over: nothing else is read."""
REMOVED_FILE: Final = "removed"
"""In a data directory: its broker was removed from the cluster, and never comes back."""


class SharedAddress(Struct, frozen=True):
    """An address at which all processes of a node accept."""

    address: Endpoint
    descriptor: int | None
    """Of the listening socket that the process inherits; None: each binds a socket of its own."""

    def accepting(self) -> socket.socket | None:
        """A socket that accepts there, without blocking; None: the process has to bind one."""
        if self.descriptor is None:
            return None
        # A copy: a listener closes its socket when it stops, and another one may follow.
        found = socket.socket(fileno=os.dup(self.descriptor))
        found.setblocking(False)
        return found


class NodeProcess(Struct, frozen=True, kw_only=True):
    """One process of a node."""

    number: int
    """From 1."""
    directories: tuple[str, ...]
    """The data directories of all processes, in their order."""
    config: ServerConfig
    """Of this process: its own addresses and directory."""
    shared: Mapping[str, SharedAddress]
    """By the setting of the listener."""
    http: Endpoint
    """The HTTP address of the node for others."""
    http_port: int
    """Where it is bound."""
    parent: int
    """The process that supervises this one, and without which it ends."""

    @property
    def count(self) -> int:
        return len(self.directories)

    def others(self) -> list[int]:
        """The numbers of the other processes, but for brokers that have left the cluster."""
        return [
            number
            for number, directory in enumerate(self.directories, 1)
            if number != self.number and not Path(directory, REMOVED_FILE).exists()
        ]


def write_process(process: NodeProcess) -> bytes:
    return _HEAD + pickle.dumps(process)


def read_process(stream: BinaryIO) -> NodeProcess:
    """From the supervisor that started this process. Raises ValueError."""
    if stream.read(len(_HEAD)) != _HEAD:
        raise ValueError("stdin does not hold a process of a node")
    try:
        found = pickle.load(stream)
    except (EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"stdin ends too early: {error}") from None
    if not isinstance(found, NodeProcess):
        raise ValueError("stdin does not hold a process of a node")
    return found
