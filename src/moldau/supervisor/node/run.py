"""Runs a node: prepares its addresses and directories, then supervises its processes."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from moldau import __version__
from moldau.model import log_events as events
from moldau.model.process_option import PROCESS_OPTION
from moldau.server.config.listeners import listeners_for
from moldau.server.config.scalars import parse_address
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerProtocol
from moldau.server.derived_config import with_machine
from moldau.server.descriptors import raise_limit
from moldau.server.logs import set_up_logging
from moldau.server.node.cores import usable_cores
from moldau.server.node.directories import directory_of, machine_of, stored_processes
from moldau.server.node.files import files_problem, partitions_stored
from moldau.server.node.plan import Plan, log_lack_of_room, make_plan
from moldau.server.node.process import REMOVED_FILE, NodeProcess, write_process
from moldau.server.node.sockets import SharedSockets
from moldau.supervisor.child import Child
from moldau.supervisor.node.node import Node, Start
from moldau.supervisor.node.signals import Signals

log = logging.getLogger(__name__)

_SECRET_FILE: Final = "cluster.secret"


def run_node(config: ServerConfig, count: int, on_ready: Callable[[str], None]) -> int:
    """Until SIGTERM or SIGINT; returns the exit code. `on_ready` gets the line for who waits.

    Raises ConfigError if it cannot start.
    """
    plan = make_plan(config, count)
    set_up_logging(config.logging)
    _warn_of_cores(count)
    warn_of_files(config, count, raise_limit())
    log_lack_of_room(config, count)
    stored = stored_processes(plan.root)
    removed = [number for number, one in stored.items() if one.is_removed and number <= count]
    for number in removed:
        log.warning(
            "process %d is not started, since its broker was removed from the cluster; use fewer "
            "processes, or delete what is in %s but the directories of other processes, and a new "
            "broker joins",
            number,
            directory_of(plan.root, number),
            extra=events.PROCESS_ENDED(node_process=number),
        )
    with SharedSockets(plan) as sockets, Signals() as signals:
        starter = _Starter(plan, sockets)
        has_cluster = [
            number in stored and stored[number].cluster_id is not None for number in plan.numbers
        ]
        node = Node(has_cluster, removed, start=starter.start, was_removed=starter.was_removed)
        # Once it stops, the addresses end with the last process that accepts there.
        return node.run(
            signals, lambda children: on_ready(ready_line(plan, sockets, children)), sockets.close
        )


def ready_line(plan: Plan, sockets: SharedSockets, children: Sequence[Child]) -> str:
    """As that of one broker, with the addresses of the node."""
    # Of several listeners the first one.
    listeners = reversed(plan.shared())
    found = {one.protocol: sockets.addresses[one.setting].address for one in listeners}
    (http,) = listeners_for(plan.config, ListenerProtocol.HTTP)
    web = f"{'https' if http.uses_tls else 'http'}://{found[ListenerProtocol.HTTP]}"
    grpc = found.get(ListenerProtocol.GRPC)
    (first, *_), kafka = children, found[ListenerProtocol.KAFKA]
    addresses = [
        f"Kafka {kafka}",
        *([f"gRPC {grpc}"] if grpc else []),
        f"HTTP {web}",
        f"console {web}/ui/",
    ]
    brokers = ", ".join(str(child.broker_id) for child in children)
    return (
        f"moldau {__version__} ready on {kafka} ({len(children)} processes, brokers {brokers}, "
        f"cluster {first.cluster_id}, data in {plan.root}): {', '.join(addresses)}"
    )


def _warn_of_cores(count: int) -> None:
    cores = usable_cores()
    if count > cores:
        log.warning(
            "processes is %d, but this machine lets them use %d: more than %d are no faster",
            count,
            cores,
            cores,
            extra=events.PROCESSES_EXCEED_CORES(processes=count, cores=cores),
        )


def warn_of_files(config: ServerConfig, count: int, limit: int | None) -> None:
    """`limit`: of the files that a process may open; None: there is none."""
    partitions = partitions_stored(Path(config.data_dir).absolute())
    if (problem := files_problem(count, limit, partitions)) is not None:
        log.warning(
            "processes is %s and starts %d, but %s",
            config.processes,
            count,
            problem,
            extra=events.FILE_LIMIT_LOW(),
        )


class _Starter:
    def __init__(self, plan: Plan, sockets: SharedSockets) -> None:
        self._plan = plan
        self._sockets = sockets

    def was_removed(self, number: int) -> bool:
        return (directory_of(self._plan.root, number) / REMOVED_FILE).exists()

    @property
    def _http_port(self) -> int:
        (listener,) = listeners_for(self._plan.config, ListenerProtocol.HTTP)
        return self._sockets.addresses[listener.setting].address.port

    def start(self, start: Start) -> Child:
        """Raises OSError."""
        number, plan = start.number, self._plan
        join = None if number == 1 else plan.http_of(1)
        if start.through is not None:
            join = plan.http_of(start.through) or parse_address(start.http)
        config = plan.of_process(number, join)
        if number > 1:
            config = with_machine(config, machine_of(plan.root, socket.gethostname()))
        if start.through is not None:
            # The secret is here already, so that no token is needed.
            secret = directory_of(plan.root, start.through) / _SECRET_FILE
            config = replace(config, cluster_secret_file=str(secret), join_token_file=None)
        process = NodeProcess(
            number=number,
            directories=plan.directories,
            config=config,
            shared=self._sockets.addresses,
            http=self._sockets.advertised[ListenerProtocol.HTTP],
            http_port=self._http_port,
            parent=os.getpid(),
        )
        return Child(
            # What `ps` shows.
            [sys.executable, "-m", "moldau", "broker", "start", PROCESS_OPTION, str(number)],
            stdin=write_process(process),
            descriptors=self._sockets.inherited,
        )
