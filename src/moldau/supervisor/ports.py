"""Owns the ports of a cluster on one machine: the n-th broker has each of the first + n - 1."""

import errno
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from moldau.cli.errors import CommandError, ExitCode
from moldau.supervisor.state import HOST, Member, Ports

PORT_MAX = 65535
# Below those that systems give to outgoing connections: a broker that is down for a while must
# find its port free.
_FREE_FIRST, _FREE_LAST = 15000, 32000
_FREE_TRIES = 500
_FIELDS = ("kafka", "raft", "http", "grpc")


def nth_ports(first: Ports, number: int) -> Ports:
    """The ports of the n-th broker; 0 stays 0."""

    def nth(port: int) -> int:
        return port + number - 1 if port else 0

    return Ports(**{field: nth(getattr(first, field)) for field in _FIELDS})


def plan_ports(wanted: Sequence[tuple[int, Ports]], existing: Iterable[Ports] = ()) -> list[Ports]:
    """Ports for brokers by number, with a free one for every 0.

    Raises CommandError if one cannot be had. `existing` are those of the cluster's other brokers.
    """
    owners = {
        getattr(ports, field): "another broker of this cluster"
        for ports in existing
        for field in _FIELDS
        if getattr(ports, field)
    }
    problems: list[str] = []
    planned = []
    with ExitStack() as held:
        for number, ports in wanted:
            found: dict[str, int] = {}
            for field in _FIELDS:
                port = getattr(ports, field)
                what = f"{field} port {port} of broker {number}"
                if port > PORT_MAX:
                    problems.append(f"{what} is above {PORT_MAX}")
                elif port in owners:
                    problems.append(f"{what} is the port of {owners[port]}")
                # Held until all are chosen, so that nobody else takes one meanwhile.
                elif port:
                    _hold(held, port, what, problems)
                else:
                    port = _hold_free(held, owners)
                owners.setdefault(port, f"the {field} listener of broker {number}")
                found[field] = port
            planned.append(Ports(**found))
    if problems:
        raise CommandError(
            "\n".join(problems),
            hint="others: --kafka-port, --raft-port, --http-port, --grpc-port (0: any free ones) "
            "· who is there? moldau doctor",
            code=ExitCode.CONFIG,
        )
    return planned


def complete_ports(members: Sequence[Member]) -> None:
    """Give a free port for gRPC to brokers of a cluster from before there was any."""
    owners = {
        getattr(member.ports, field): "a broker of this cluster"
        for member in members
        for field in _FIELDS
    }
    with ExitStack() as held:
        for member in members:
            if not member.ports.grpc:
                ports = member.ports
                member.ports = Ports(
                    kafka=ports.kafka,
                    raft=ports.raft,
                    http=ports.http,
                    grpc=_hold_free(held, owners),
                )
                owners[member.ports.grpc] = "a broker of this cluster"


def check_ports(ports: Iterable[tuple[int, Ports]]) -> None:
    """Raises CommandError if a port of a broker (by number) is taken by somebody."""
    problems: list[str] = []
    with ExitStack() as held:
        for number, of_broker in ports:
            for field in _FIELDS:
                port = getattr(of_broker, field)
                _hold(held, port, f"{field} port {port} of broker {number}", problems)
    if problems:
        raise CommandError(
            "\n".join(problems),
            hint="end what listens there: this cluster keeps its ports",
            code=ExitCode.CONFIG,
        )


def _hold(held: ExitStack, port: int, what: str, problems: list[str]) -> None:
    try:
        held.enter_context(_bind(port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problems.append(f"{what} is taken: something listens on {HOST}:{port}")
        else:
            problems.append(f"{what} cannot be used: {(error.strerror or str(error)).lower()}")


def _hold_free(held: ExitStack, owners: Mapping[int, str]) -> int:
    """A port that nobody has, nor was promised: ports that are held may be bound once more."""
    for _ in range(_FREE_TRIES):
        port = random.randint(_FREE_FIRST, _FREE_LAST)
        if port in owners:
            continue
        try:
            held.enter_context(_bind(port))
        except OSError:
            continue
        return port
    raise CommandError(
        f"no free port was found between {_FREE_FIRST} and {_FREE_LAST}",
        hint="choose some: --kafka-port, --raft-port, --http-port, --grpc-port",
        code=ExitCode.CONFIG,
    )


def _bind(port: int) -> socket.socket:
    opened = socket.socket()
    try:
        # As the listeners do: connections that wait for their end are no hindrance.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((HOST, port))
    except OSError:
        opened.close()
        raise
    return opened
