"""Ports of a cluster on one machine: broker n uses each port of broker 1 + n - 1."""

import errno
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from moldau.model.exit_codes import ExitCode
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.state import HOST, Member, Ports

PORT_MAX = 65535
# Below the ephemeral ports: an outgoing connection must not take the port of a stopped broker.
_FREE_FIRST, _FREE_LAST = 10000, 19999
_FREE_TRIES = 500
_FIELDS = Ports.__struct_fields__


def nth_ports(first: Ports, number: int) -> Ports:
    """The ports of broker n; 0 stays 0."""

    def nth(port: int) -> int:
        return port + number - 1 if port else 0

    return Ports(**{field: nth(getattr(first, field)) for field in _FIELDS})


def plan_ports(wanted: Sequence[tuple[int, Ports]], existing: Iterable[Ports] = ()) -> list[Ports]:
    """Ports for brokers by id, with a free one for every 0.

    Raises SupervisorError if a port is taken. `existing`: ports of the other brokers.
    """
    owners = {
        getattr(ports, field): "another broker of this cluster"
        for ports in existing
        for field in _FIELDS
        if getattr(ports, field)
    }
    problems: list[str] = []
    planned = []
    with ExitStack() as bound:
        for number, ports in wanted:
            found: dict[str, int] = {}
            for field in _FIELDS:
                port = getattr(ports, field)
                what = f"{field} port {port} of broker {number}"
                if port > PORT_MAX:
                    problems.append(f"{what} is above {PORT_MAX}")
                elif port in owners:
                    problems.append(f"{what} is the port of {owners[port]}")
                # Bound until all are chosen, so that no other process takes one meanwhile.
                elif port:
                    _reserve(bound, port, what, problems)
                else:
                    port = _reserve_free(bound, owners)
                owners.setdefault(port, f"the {field} listener of broker {number}")
                found[field] = port
            planned.append(Ports(**found))
    if problems:
        raise SupervisorError(
            "\n".join(problems),
            hint="choose others: --kafka-port, --raft-port, --http-port, --grpc-port (0: any free "
            "port) · find the program: lsof -i :PORT",
            code=ExitCode.CONFIG,
        )
    return planned


def complete_ports(members: Sequence[Member]) -> None:
    """Assign a free gRPC port to brokers of a state file from before gRPC."""
    owners = {
        getattr(member.ports, field): "a broker of this cluster"
        for member in members
        for field in _FIELDS
    }
    with ExitStack() as bound:
        for member in members:
            if not member.ports.grpc:
                member.ports = replace(member.ports, grpc=_reserve_free(bound, owners))
                owners[member.ports.grpc] = "a broker of this cluster"


def check_ports(ports: Iterable[tuple[int, Ports]]) -> None:
    """Raises SupervisorError if a port of a broker is taken by another program."""
    problems: list[str] = []
    with ExitStack() as bound:
        for number, of_broker in ports:
            for field in _FIELDS:
                port = getattr(of_broker, field)
                _reserve(bound, port, f"{field} port {port} of broker {number}", problems)
    if problems:
        raise SupervisorError(
            "\n".join(problems),
            hint="stop the program that uses it (lsof -i :PORT): a cluster keeps its ports",
            code=ExitCode.CONFIG,
        )


def _reserve(bound: ExitStack, port: int, what: str, problems: list[str]) -> None:
    try:
        bound.enter_context(_bind(port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problems.append(f"{what} is in use: another program listens on {HOST}:{port}")
        else:
            problems.append(f"{what} cannot be used: {(error.strerror or str(error)).lower()}")


def _reserve_free(bound: ExitStack, owners: Mapping[int, str]) -> int:
    """A free port that is not planned for another listener: SO_REUSEADDR would bind it again."""
    for _ in range(_FREE_TRIES):
        port = random.randint(_FREE_FIRST, _FREE_LAST)
        if port in owners:
            continue
        try:
            bound.enter_context(_bind(port))
        except OSError:
            continue
        return port
    raise SupervisorError(
        f"no free port was found between {_FREE_FIRST} and {_FREE_LAST}",
        hint="choose ports: --kafka-port, --raft-port, --http-port, --grpc-port",
        code=ExitCode.CONFIG,
    )


def _bind(port: int) -> socket.socket:
    opened = socket.socket()
    try:
        # As the listeners do: connections in TIME_WAIT do not block the port.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((HOST, port))
    except OSError:
        opened.close()
        raise
    return opened
