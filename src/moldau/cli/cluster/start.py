"""Starts a cluster on one machine: checks and stores its plan, then runs a supervisor.

Ports, settings, the directory and leftover brokers are checked before any process is started.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.output import counted, say
from moldau.cli.signals import stop_signals
from moldau.supervisor.child import log_path
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.ports import check_ports, complete_ports, nth_ports, plan_ports
from moldau.supervisor.state import (
    ClusterState,
    Member,
    Ports,
    load_state,
    orphaned_brokers,
    save_state,
)

REPLICATION_FACTOR_MAX = 3
BROKERS_DEFAULT = 3
PORTS_DEFAULT = Ports(kafka=9092, raft=19092, http=8080, grpc=8000)
SUPERVISOR_LOG = "supervisor.log"

_OF_ONE_BROKER = frozenset(
    {
        "bootstrap",
        "broker_id",
        "data_dir",
        "join_addr",
        "port",
        "processes",
        "kafka.addr",
        "kafka.advertised",
        "raft.addr",
        "http.addr",
        "grpc.addr",
    }
)
_POLL_SECONDS = 0.1
_TAIL_LINES = 10

Settings = Sequence[tuple[str, str]]


def prepare(
    directory: Path,
    count: int | None,
    ports: Sequence[int | None],
    settings: Settings,
    *,
    play: bool | None = None,
) -> ClusterState:
    """The stored or new plan of the cluster in a directory. The caller holds the lock.

    `ports` are those of broker 1 for Kafka, Raft, HTTP and gRPC. None: not given.
    """
    _check_settings(settings)
    state = load_state(directory)
    if state is None:
        state = _new_state(directory, count, ports, settings)
    else:
        _check_same(directory, state, count, ports)
        if left := orphaned_brokers(state):
            numbers = ", ".join(str(member.id) for member in left)
            raise CommandError(
                f"{counted(len(left), 'broker')} of this cluster ({numbers}) run without a "
                "supervisor, which was killed",
                hint=f"stop them first: moldau cluster stop --data-dir {directory}",
            )
        if settings:
            changed = dict(state.settings) | dict(settings)
            state.settings = list(changed.items())
        complete_ports(state.brokers)
        check_ports([(member.id, member.ports) for member in state.brokers])
    if play is not None:
        state.play = play
    # Reports wrong settings here, once, and not in every broker's log.
    state.replication_factor = _replication_factor(state)
    save_state(directory, state)
    return state


def _new_state(
    directory: Path, count: int | None, ports: Sequence[int | None], settings: Settings
) -> ClusterState:
    foreign = [entry.name for entry in directory.iterdir() if entry.name != "cluster.lock"]
    if foreign:
        raise CommandError(
            f"{directory} is not empty and contains no cluster ({sorted(foreign)[0]}, …)",
            hint="choose another directory: --data-dir DIR",
            code=ExitCode.CONFIG,
        )
    count = count or BROKERS_DEFAULT
    kafka, raft, http, grpc = ports
    usual = PORTS_DEFAULT
    http = usual.http if http is None else http
    if grpc is None:
        # Shifted with HTTP, so that a second cluster need not set all ports.
        grpc = max(0, http + usual.grpc - usual.http) if http else 0
    first = Ports(
        kafka=usual.kafka if kafka is None else kafka,
        raft=usual.raft if raft is None else raft,
        http=http,
        grpc=grpc,
    )
    numbers = range(1, count + 1)
    planned = plan_ports([(number, nth_ports(first, number)) for number in numbers])
    return ClusterState(
        ports=first,
        replication_factor=min(REPLICATION_FACTOR_MAX, count),
        settings=list(settings),
        next_id=count + 1,
        brokers=[
            Member(id=number, ports=of_broker, directory=f"broker-{number}")
            for number, of_broker in zip(numbers, planned, strict=True)
        ],
    )


def _check_same(
    directory: Path, state: ClusterState, count: int | None, ports: Sequence[int | None]
) -> None:
    """Raises CommandError for options that differ from the stored plan."""
    has = len(state.brokers)
    if count is not None and count != has:
        more = "add brokers once it runs: moldau cluster add · " if count > has else ""
        raise CommandError(
            f"the cluster in {directory} has {counted(has, 'broker')}, not {count}",
            hint=f"start it without -n · {more}start another cluster: --data-dir DIR",
            code=ExitCode.USAGE,
        )
    for name, port in zip(("kafka", "raft", "http", "grpc"), ports, strict=True):
        kept = getattr(state.ports, name)
        if port is not None and port != kept:
            raise CommandError(
                f"the {name} ports of the cluster in {directory} cannot be changed (they start at "
                f"{getattr(state.brokers[0].ports, name)})",
                hint=f"start it without --{name}-port · start another cluster: --data-dir DIR",
                code=ExitCode.USAGE,
            )


def _check_settings(settings: Settings) -> None:
    seen: set[str] = set()
    for key, _ in settings:
        if key in _OF_ONE_BROKER:
            raise CommandError(
                f"{key} is specific to one broker and cannot be set for all",
                hint="ports: --kafka-port, --raft-port, --http-port, --grpc-port "
                "· directory: --data-dir",
                code=ExitCode.USAGE,
            )
        if key in seen:
            raise CommandError(f"{key} is set twice on the command line", code=ExitCode.USAGE)
        seen.add(key)


def _replication_factor(state: ClusterState) -> int:
    """The brokers' default; raises ConfigError for settings that they would reject."""
    from moldau.cli.broker import load

    first = state.brokers[0]
    flags = {
        "broker_id": first.id,
        "kafka.addr": first.kafka,
        "raft.addr": first.raft,
        "http.addr": first.http,
        "grpc.addr": first.grpc,
    }
    preset = {"topic.replication_factor": state.replication_factor}
    resolved = load(flags, tuple(state.settings), None, preset=preset)
    return resolved.config.topic.replication_factor or state.replication_factor


def run_here(directory: Path, state: ClusterState, on_settled: Callable[[], object]) -> int:
    """Supervise in this process until it is stopped. The caller holds the lock."""
    from moldau.supervisor.supervisor import Supervisor

    def notify(text: str) -> None:
        # The terminal may be closed, or the log's disk full.
        with contextlib.suppress(OSError):
            say(f"{time.strftime('%H:%M:%S')} {text}")

    # Closing the terminal stops the cluster, as Ctrl-C does.
    with stop_signals(signal.SIGHUP) as stop:
        supervisor = Supervisor(directory, state, notify=notify)
        try:
            is_up = supervisor.run(lambda: bool(stop), on_settled)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
    if not is_up:
        raise _not_started(directory, state, "no broker started")
    return ExitCode.OK


def _not_started(directory: Path, state: ClusterState | None, otherwise: str) -> CommandError:
    """The errors that its brokers printed, else `otherwise`."""
    failed = [member for member in state.brokers if member.state == "failed"] if state else []
    if not failed:
        return CommandError(otherwise, hint=f"logs: {directory}/*.log")
    texts, hints = [], []
    for member in failed:
        first, *printed = member.reason.splitlines()
        errors = [line.removeprefix("error: ") for line in printed if not line.startswith("hint: ")]
        hints += [
            line.removeprefix("hint: ").strip() for line in printed if line.startswith("hint: ")
        ]
        texts.append(f"broker {member.id} did not start: {'; '.join(errors) or first}")
    log = log_path(directory, failed[0])
    return CommandError("\n".join(texts), hint=hints[0] if hints else f"its log: {log}")


def run_detached(directory: Path, seconds_max: float) -> ClusterState:
    """Start a supervisor in its own session; returns when every broker is ready or has failed."""
    log = directory / SUPERVISOR_LOG
    with open(log, "ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau", "cluster", "run", "--data-dir", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=dict(os.environ),
        )
    deadline = time.monotonic() + seconds_max
    while True:
        if process.poll() is not None:
            lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
            text = "; ".join(line.removeprefix("error: ") for line in lines)
            raise _not_started(
                directory, load_state(directory), f"the cluster did not start: {text}"
            )
        state = load_state(directory)
        reply = send_request(state.control, "status") if state is not None else None
        if reply is not None and reply["settled"]:
            return state_of(reply)
        if time.monotonic() >= deadline:
            raise CommandError(
                f"the cluster did not start within {seconds_max:g} s; it is still starting",
                hint=f"check it: moldau cluster status --data-dir {directory} · its log: {log}",
            )
        time.sleep(_POLL_SECONDS)
