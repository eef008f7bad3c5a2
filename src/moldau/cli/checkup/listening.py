"""Who listens at a port of this machine: the process, where the system says it (Linux)."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from moldau.model.topology import Endpoint

_LISTENS: Final = "0A"
_COMMAND_LENGTH_MAX: Final = 100
_TABLES: Final = ("tcp", "tcp6")


class Program(NamedTuple):
    """A process that listens."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}: {self.command}"


def program_at(address: "Endpoint", proc: Path = Path("/proc")) -> Program | None:
    """The process that listens at this port, or None: nobody, or it is another user's."""
    inodes = set(_sockets(address, proc))
    if not inodes:
        return None
    for entry in proc.iterdir():
        if entry.name.isdigit() and any(link in inodes for link in _links(entry / "fd")):
            return Program(int(entry.name), _command(entry))
    return None


def _sockets(address: "Endpoint", proc: Path) -> Iterator[str]:
    """Links of the sockets that listen at the address, or at all addresses."""
    wanted = _written(address.host)
    for table in _TABLES:
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if fields[3] != _LISTENS or int(port, 16) != address.port:
                continue
            if not wanted or not host.strip("0") or host in wanted:
                yield f"socket:[{fields[9]}]"


def _written(host: str) -> set[str]:
    """How the tables write a host; empty for all, or for a name that is unknown."""
    found = set()
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    for family, *_, name in infos:
        packed = socket.inet_pton(family, str(name[0]).partition("%")[0])
        words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
        if any(packed):
            found.add(b"".join(words).hex().upper())
    return found


def _links(directory: Path) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        # It has ended, or belongs to another user.
        return
    for name in names:
        try:
            yield os.readlink(directory / name)
        except OSError:
            continue


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "it has just ended"
    words = words.strip()
    return words[:_COMMAND_LENGTH_MAX] + ("…" if len(words) > _COMMAND_LENGTH_MAX else "")
