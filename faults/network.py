"""The networks that brokers and clients of a run live in, behind one set of words.

Who takes part has a name: b1, b2, … and clients. `cut` and `heal` mean the same in each; the
difference is how a cut feels. In namespaces packets vanish, so a stream whose acknowledgements
vanish stands still as well; a proxy holds up what is said in one direction and nothing else.
"""

import ctypes
import os
import socket
import threading
from dataclasses import dataclass
from typing import Final

from faults.namespaces import NamespaceError, Namespaces
from faults.proxy import Link, LinkCounters, Proxies
from moldau.testing.ports import free_ports

CLIENTS: Final = "clients"
NUMBER_MAX: Final = 8
"""The highest number of a broker that may join."""
_CONNECT_SECONDS_MAX: Final = 5.0
_NEW_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one broker lives."""

    kafka: str
    raft: str
    http: str
    kafka_advertised: str = ""
    raft_advertised: str = ""
    prefix: tuple[str, ...] = ()


def name_of(number: int) -> str:
    return f"b{number}"


class Network:
    """Loopback as it is; nothing can be cut."""

    kind = "direct"

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        """Of the brokers that run."""

    def place(self, number: int) -> Place:
        kafka, raft, http = free_ports(3)
        return Place(kafka=f"127.0.0.1:{kafka}", raft=f"127.0.0.1:{raft}", http=f"127.0.0.1:{http}")

    def command(self, where: str = CLIENTS) -> list[str]:
        """What to put before a command so that it runs there."""
        return []

    def connect(self, address: str) -> socket.socket:
        """A connection of the harness, which no cut concerns."""
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), _CONNECT_SECONDS_MAX)

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Nothing that `source` says reaches `target`; nor the other way, by default."""
        raise ValueError("this network cannot be cut")

    def heal(self) -> None:
        """All that was cut can talk again."""

    def proof(self, source: str, target: str, port: int) -> str:
        """That nothing passes now; empty if something does."""
        return ""

    def close(self) -> None:
        """Nothing of it is left."""


class SpaceNetwork(Network):
    """A network namespace for each broker and for the clients."""

    kind = "namespaces"

    def __init__(self, count: int, *others: str) -> None:
        super().__init__()
        names = [name_of(number) for number in range(1, count + 1)]
        self.spaces = Namespaces([*names, CLIENTS, *others])

    def place(self, number: int) -> Place:
        name = name_of(number)
        host = self.spaces.addresses[name]
        return Place(
            kafka=f"{host}:9092",
            raft=f"{host}:19092",
            http=f"{host}:8080",
            prefix=tuple(self.spaces.command(name)),
        )

    def command(self, where: str = CLIENTS) -> list[str]:
        return self.spaces.command(where)

    def connect(self, address: str) -> socket.socket:
        """From the broker's own namespace, so that it is reached whatever is cut."""
        host, _, port = address.rpartition(":")
        name = next(name for name, known in self.spaces.addresses.items() if known == host)
        return connect_in(self.spaces.path(name), host, int(port))

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        self.spaces.cut(source, target, both=both)

    def heal(self) -> None:
        self.spaces.heal()

    def proof(self, source: str, target: str, port: int) -> str:
        if self.spaces.reaches(source, target, port):
            return ""
        return f"no connection from {source} to {target}"

    def close(self) -> None:
        self.spaces.close()


class ProxyNetwork(Network):
    """A proxy from the clients to each broker, and for each ordered pair of brokers."""

    kind = "proxies"

    def __init__(self, *, peers: bool, seed: int = 1) -> None:
        """`peers`: whether there will be more than one broker."""
        super().__init__()
        self._has_peers = peers
        self._proxies = Proxies(seed)
        self.clients: dict[int, Link] = {}
        self.peers: dict[tuple[int, int], Link] = {}
        """From one that says something to the one that shall hear it."""
        self._before: dict[tuple[str, str], int] = {}

    def place(self, number: int) -> Place:
        found = super().place(number)
        self.clients[number] = self._proxies.link(_pair(found.kafka))
        raft_advertised = self._gate(number, found.raft) if self._has_peers else ""
        return Place(
            kafka=found.kafka,
            raft=found.raft,
            http=found.http,
            kafka_advertised=self.clients[number].address,
            raft_advertised=raft_advertised,
        )

    def _gate(self, number: int, raft: str) -> str:
        others = [other for other in range(1, NUMBER_MAX + 1) if other != number]
        gate = self._proxies.gate(_pair(raft), others, lambda: dict(self.pids))
        for other, link in gate.links.items():
            self.peers[other, number] = link
        return gate.address

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        for one, other in [(source, target), (target, source)][: 2 if both else 1]:
            self._before[one, other] = _held(self._link(one, other).counters)
            if other == CLIENTS:
                self._link(one, other).set(cut_back=True)
            else:
                self._link(one, other).set(cut_forward=True)

    def _link(self, source: str, target: str) -> Link:
        if CLIENTS in (source, target):
            broker = target if source == CLIENTS else source
            return self.clients[int(broker[1:])]
        return self.peers[int(source[1:]), int(target[1:])]

    def heal(self) -> None:
        for link in [*self.clients.values(), *self.peers.values()]:
            link.heal()

    def proof(self, source: str, target: str, port: int) -> str:
        held = _held(self._link(source, target).counters) - self._before.get((source, target), 0)
        return f"{held} chunks or connections from {source} to {target} held up" if held else ""

    @property
    def links(self) -> list[Link]:
        return [*self.clients.values(), *self.peers.values()]

    def close(self) -> None:
        self._proxies.close()


def _held(counters: LinkCounters) -> int:
    return counters.chunks_held + counters.refused


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def connect_in(space: str, host: str, port: int) -> socket.socket:
    """A connection made inside of a network namespace: a socket stays where it was made."""
    found: list[socket.socket] = []
    errors: list[Exception] = []

    def connect() -> None:
        try:
            descriptor = os.open(space, os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(descriptor, _NEW_NETWORK) != 0:
                    raise NamespaceError(f"setns: {os.strerror(ctypes.get_errno())}")
            finally:
                os.close(descriptor)
            found.append(socket.create_connection((host, port), _CONNECT_SECONDS_MAX))
        except (OSError, NamespaceError) as error:
            errors.append(error)

    # The thread ends with its namespace; nobody else's is changed.
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def make_network(kind: str, count: int, others: tuple[str, ...] = ()) -> Network:
    """`others`: further places for clients, in namespaces only."""
    if kind == "namespaces":
        return SpaceNetwork(count, *others)
    return ProxyNetwork(peers=count > 1) if kind == "proxies" else Network()
