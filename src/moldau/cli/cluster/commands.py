"""`moldau cluster`: runs several brokers on one machine under a supervisor.

The supervisor (moldau.supervisor) runs in this process or in a detached one; commands send it
requests. Without a supervisor they can only show the state and stop leftover brokers.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.cluster.directory import complete_members, dir_option
from moldau.cli.cluster.problems import problem_rows, say_problems
from moldau.cli.cluster.start import prepare, run_detached, run_here
from moldau.cli.cluster.status import (
    client_of,
    departed,
    dir_flag,
    live,
    member_problems,
    member_rows,
    one_line,
    status_rows,
    supervised_state,
    topology_of,
)
from moldau.cli.cluster.topology import drain, headline, partition_count, wait_in_sync
from moldau.cli.connection.options import connection_options
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    Properties,
    complete_topics,
    output_option,
    set_option,
    timeout_option,
    yes_option,
)
from moldau.cli.output import counted, emit_document, emit_table, say
from moldau.client.processes import send_signal, wait_until_ended
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.state import (
    ClusterState,
    Member,
    is_locked,
    locked,
    need_state,
)

_LISTENERS = ("kafka", "raft", "http", "grpc")
_POLL_SECONDS = 0.1
_KILL_SECONDS_MAX = 10.0
_STOP_SECONDS_MAX = 45.0

_F = TypeVar("_F", bound=Callable[..., Any])


def _connected_dir_option(function: _F) -> _F:
    """Of commands that also connect to the cluster's brokers."""
    return connection_options(dir_option(function), has_data_dir=True)


def _ports_options(text: str) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for name, shown, default in (
            ("grpc", "gRPC", "8000, shifted with --http-port"),
            ("http", "HTTP", "8080"),
            ("raft", "Raft", "19092"),
            ("kafka", "Kafka", "9092"),
        ):
            function = click.option(
                f"--{name}-port",
                type=Integer(0, 65535),
                metavar="PORT",
                help=text.format(name=shown, at=default),
            )(function)
        return function

    return decorate


@click.group(
    "cluster",
    cls=LazyGroup,
    package="moldau.cli.cluster",
    lazy={
        "token": ("token:token", "Create, list and delete tokens that brokers join with."),
        "config": ("config:config", "Read and change settings of running brokers."),
        "secret": (
            "secret:secret",
            "What the brokers of a cluster prove to each other.",
        ),
        "recover": (
            "recover:recover",
            "Continue a cluster whose metadata has lost its majority for good.",
        ),
        "pause": ("faults:pause", "Freeze a broker for some seconds, as a stalled machine would."),
        "resume": ("faults:resume", "Let a paused broker go on."),
        "cut": ("faults:cut", "Cut the link between two brokers, or mend it."),
        "slow": ("faults:slow", "Delay each flush of a broker, as a slow disk would."),
        "heal": ("faults:heal", "End all faults, and start the brokers that are down."),
    },
    examples=(
        "moldau cluster start -n 3",
        "moldau cluster status          # in another terminal",
        "moldau cluster kill 2          # simulate a crash",
    ),
)
def cluster() -> None:
    """Run several brokers on this machine, under a supervisor that restarts them."""


# ---- start


@cluster.command(
    "start",
    examples=(
        "moldau cluster start -n 3",
        "moldau cluster start -n 3 -d --data-dir /var/lib/moldau",
        "moldau cluster start --kafka-port 0 --raft-port 0 --http-port 0 --set topic.partitions=6",
    ),
)
@click.option(
    "-n",
    "--count",
    type=Integer(1, 100),
    help="Number of brokers of a new cluster.  [default: 3]",
)
@dir_option
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@_ports_options(
    "{name} port of broker 1; broker n uses + n - 1; 0: any free ones.  [default: {at}]"
)
@click.option(
    "--play/--no-play",
    default=None,
    help="Whether clients, as the console, may make faults on purpose; kept for later starts.  "
    "[default: play]",
)
@set_option("A setting of all brokers, kept for later starts")
@timeout_option("3m")
def start(
    count: int | None,
    data_dir: Path,
    detach: bool,
    play: bool | None,
    settings: Properties,
    timeout: float,
    **ports: int | None,
) -> int:
    """Start a new cluster on this machine, or the existing one in the directory.

    A supervisor restarts brokers that crash. Ctrl-C stops all brokers.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(data_dir):
        given = [ports[f"{name}_port"] for name in _LISTENERS]
        state = prepare(data_dir, count, given, settings, play=play)
        if not detach:
            return run_here(data_dir, state, lambda: _show_started(data_dir, state, detach))
    state = run_detached(data_dir, timeout)
    return _show_started(data_dir, state, detach)


@cluster.command(
    "run",
    hidden=True,
    examples=(
        "moldau cluster run",
        "moldau cluster run --data-dir /var/lib/moldau",
        "exec moldau cluster run --data-dir /var/lib/moldau   # under another supervisor",
    ),
)
@dir_option
def run(data_dir: Path) -> int:
    """Run the supervisor of an existing cluster; `start -d` runs this in the background."""
    with locked(data_dir):
        return run_here(data_dir, need_state(data_dir), lambda: None)


def _show_started(data_dir: Path, state: ClusterState, detached: bool) -> int:
    emit_table(member_rows(data_dir, state))
    factor = state.replication_factor
    say(
        f"\nNew topics have {counted(factor, 'replica')} by default "
        f"(topic.replication_factor={factor}). Logs: {data_dir}/broker-N.log"
    )
    encrypts = dict(state.settings).get("http.security", "none") != "none"
    say(f"Web console: http{'s' * encrypts}://{state.brokers[0].http}/ui/")
    if detached:
        say(f"Stop it: moldau cluster stop{dir_flag(data_dir)}\n")
    else:
        say(f"Inspect it: moldau cluster status{dir_flag(data_dir)} · Ctrl-C stops it\n")
    _export(state)
    down = [member for member in state.brokers if member.state != "ready"]
    for member in down:
        say(f"broker {member.id} is not ready ({member.state}): {one_line(member.reason)}")
    return ExitCode.FAILED if down else ExitCode.OK


def _export(state: ClusterState) -> None:
    """Print the addresses as shell exports, for clients and for other commands."""
    click.echo(f"export MOLDAU_BROKERS={state.bootstrap}")
    click.echo(f"export MOLDAU_HTTP={','.join(member.http for member in state.brokers)}")
    click.echo(f"export MOLDAU_GRPC={','.join(member.grpc for member in state.brokers)}")


# ---- status


@cluster.command(
    "status",
    examples=(
        "moldau cluster status",
        "moldau cluster status -o json",
        "moldau cluster status && echo healthy",
    ),
)
@_connected_dir_option
@output_option
def status(data_dir: Path, output: str) -> int:
    """Show brokers and partitions, and what remedies each problem.

    Exits with 0 if all is healthy, 1 if the cluster is degraded, 3 if no broker responds.
    """
    state, supervised = live(data_dir)
    topology, why, code = topology_of(state)
    found = member_problems(data_dir, state, supervised, topology, why)
    rows = status_rows(state, topology)
    document = {
        "cluster_id": state.cluster_id,
        "data_dir": str(data_dir),
        "supervisor": state.supervisor_pid if supervised else None,
        "bootstrap": state.bootstrap,
        "replication_factor": state.replication_factor,
        "controller": topology.controller if topology else None,
        "partitions": partition_count(topology) if topology else None,
        "under_replicated": topology.under_replicated if topology else None,
        "leaderless": topology.leaderless if topology else None,
        "brokers": rows,
        "problems": problem_rows(found),
    }
    if not emit_document(document, output, name="cluster_id"):
        if topology is not None:
            click.echo(headline(topology) + "\n")
        emit_table(rows)
        if found:
            say()
        say_problems(found)
        for number in departed(state, topology):
            say(
                f"note: broker {number} has left the cluster but still runs; "
                f"stop it: moldau cluster remove {number}{dir_flag(data_dir)}"
            )
    if topology is None:
        return code
    return ExitCode.FAILED if found else ExitCode.OK


# ---- change


def _request(data_dir: Path, verb: str, **arguments: object) -> ClusterState:
    """Send the supervisor a request; raises CommandError if it does not run."""
    reply = send_request(supervised_state(data_dir).control, verb, **arguments)
    if reply is None:
        raise CommandError("the supervisor has exited", hint="check it: moldau cluster status")
    return state_of(reply)


def _await_member(
    data_dir: Path, number: int, condition: Callable[[Member], bool], seconds_max: float
) -> Member:
    """Wait for a condition. Raises CommandError if the broker fails, or at the deadline."""
    deadline = time.monotonic() + seconds_max
    while True:
        member = supervised_state(data_dir).member(number)
        if condition(member):
            return member
        if member.state == "failed":
            raise CommandError(
                f"broker {number} did not start: {one_line(member.reason)}",
                hint=f"its log: {data_dir}/broker-{number}.log",
            )
        if time.monotonic() >= deadline:
            raise CommandError(
                f"broker {number} is still {member.state} after {seconds_max:g} s",
                hint=f"check it: moldau cluster status{dir_flag(data_dir)} "
                f"· its log: {data_dir}/broker-{number}.log",
            )
        time.sleep(_POLL_SECONDS)


@cluster.command(
    "stop",
    examples=(
        "moldau cluster stop",
        "moldau cluster stop --data-dir /var/lib/moldau",
        "moldau cluster stop 2          # only broker 2",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=complete_members)
@dir_option
@timeout_option("3m")
def stop(number: int | None, data_dir: Path, timeout: float) -> None:
    """Stop all brokers cleanly, or one of them. Data is kept."""
    if number is not None:
        _request(data_dir, "stop", id=number)
        _await_member(data_dir, number, lambda member: member.pid is None, timeout)
        say(f"stopped broker {number}")
        return
    state, supervised = live(data_dir)
    if not supervised:
        _stop_orphaned(data_dir, state)
        return
    send_request(state.control, "stop")
    deadline = time.monotonic() + timeout
    while is_locked(data_dir):
        if time.monotonic() >= deadline:
            raise CommandError(
                f"the cluster did not stop within {timeout:g} s",
                hint=f"it is still stopping; check it: moldau cluster status{dir_flag(data_dir)}",
            )
        time.sleep(_POLL_SECONDS)
    say(f"stopped {counted(len(state.brokers), 'broker')}")


def _stop_orphaned(data_dir: Path, state: ClusterState) -> None:
    """Stop brokers of a killed supervisor, broker 1 last; checks that each pid is still ours."""
    count = 0
    for member in reversed(state.brokers):
        process = member.process
        if process is None or not send_signal(process, signal.SIGTERM):
            continue
        # It may be paused, which the supervisor can no longer end.
        send_signal(process, signal.SIGCONT)
        if not wait_until_ended(process, _STOP_SECONDS_MAX):
            say(f"broker {member.id} did not stop within {_STOP_SECONDS_MAX:g} s; killing it")
            send_signal(process, signal.SIGKILL)
            wait_until_ended(process, _KILL_SECONDS_MAX)
        count += 1
    if count:
        say(f"stopped {counted(count, 'broker')} that ran without a supervisor")
    else:
        say(f"the cluster in {data_dir} is not running")


@cluster.command(
    "kill",
    examples=(
        "moldau cluster kill 2",
        "moldau cluster kill --leader-of orders",
        "moldau cluster kill 2 && moldau cluster status",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=complete_members)
@click.option("--leader-of", "topic", metavar="TOPIC", shell_complete=complete_topics,
              help="The leader of the topic's partition 0.")  # fmt: skip
@_connected_dir_option
def kill(number: int | None, topic: str | None, data_dir: Path) -> None:
    """Kill a broker with SIGKILL, to simulate a crash. It stays down until it is restarted."""
    state = supervised_state(data_dir)
    if (number is None) == (topic is None):
        raise CommandError(
            "name the broker to kill: N or --leader-of TOPIC",
            hint=f"brokers: {', '.join(str(member.id) for member in state.brokers)}",
            code=ExitCode.USAGE,
        )
    if number is None:
        number = _leader_of(state, str(topic))
    pid = state.member(number).pid
    _request(data_dir, "kill", id=number)
    _await_member(data_dir, number, lambda member: member.pid is None, _KILL_SECONDS_MAX)
    say(
        f"killed broker {number} (pid {pid}); start it again: "
        f"moldau cluster restart {number}{dir_flag(data_dir)}"
    )


def _leader_of(state: ClusterState, topic: str) -> int:
    found = client_of(state).topology([topic]).topics
    if not found:
        raise CommandError(
            f"topic {topic} does not exist",
            hint="list topics: moldau topic list",
            code=ExitCode.NOT_FOUND,
        )
    leader = found[0].partitions[0].leader
    if leader < 0:
        raise CommandError(f"{topic}-0 has no leader", hint="retry in a few seconds")
    return leader


@cluster.command(
    "restart",
    examples=(
        "moldau cluster restart 2",
        "moldau cluster restart --all   # rolling: each in sync before the next",
        "moldau cluster restart --down  # those that are not running",
    ),
)
@click.argument("numbers", metavar="[N]...", type=int, nargs=-1, shell_complete=complete_members)
@click.option("--all", "every", is_flag=True, help="All brokers, one after the other.")
@click.option("--down", is_flag=True, help="Brokers that are not running.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is in sync.  [default: wait]")
@_connected_dir_option
@timeout_option("3m")
def restart(
    numbers: tuple[int, ...], every: bool, down: bool, wait: bool, data_dir: Path, timeout: float
) -> None:
    """Restart brokers cleanly, or start those that are down."""
    state = supervised_state(data_dir)
    if every + down + bool(numbers) != 1:
        raise CommandError(
            "name the brokers to restart: N, --all or --down",
            hint=f"brokers: {', '.join(str(member.id) for member in state.brokers)}",
            code=ExitCode.USAGE,
        )
    if every:
        numbers = tuple(member.id for member in state.brokers)
    elif down:
        numbers = tuple(member.id for member in state.brokers if member.pid is None)
        if not numbers:
            say("all brokers are running")
    for number in numbers:
        before = state.member(number).pid
        state = _request(data_dir, "restart", id=number)
        if not wait:
            say(f"broker {number} is being restarted")
            continue

        def is_new(member: Member, before: int | None = before) -> bool:
            return member.state == "ready" and member.pid != before

        member = _await_member(data_dir, number, is_new, timeout)
        state = supervised_state(data_dir)
        wait_in_sync(client_of(state), number, timeout)
        say(f"broker {number} is running and in sync (pid {member.pid})")


@cluster.command(
    "add",
    examples=(
        "moldau cluster add",
        "moldau cluster add --kafka-port 9192 --data-dir /var/lib/moldau",
        "moldau cluster add && moldau partition move orders --to 1,2,4",
    ),
)
@_connected_dir_option
@_ports_options("{name} port of the new broker; 0: any free one.  [default: the next one]")
@timeout_option("3m")
def add(data_dir: Path, timeout: float, **ports: int | None) -> None:
    """Add a broker to the running cluster."""
    state = _request(data_dir, "add", **{name: ports[f"{name}_port"] for name in _LISTENERS})
    number = state.brokers[-1].id
    _await_member(data_dir, number, lambda member: member.state == "ready", timeout)
    state = supervised_state(data_dir)
    emit_table([row for row in member_rows(data_dir, state) if row["id"] == number])
    say(
        f"\nbroker {number} has joined; new topics use it, "
        f"existing ones need: moldau partition move TOPIC --to …,{number}\n"
    )
    _export(state)


@cluster.command(
    "remove",
    examples=(
        "moldau cluster remove 4",
        "moldau cluster remove 1 -y",
        "moldau cluster remove 4 --data-dir /var/lib/moldau",
    ),
)
@click.argument("number", metavar="N", type=int, shell_complete=complete_members)
@yes_option
@_connected_dir_option
@timeout_option("30m")
def remove(number: int, yes: bool, data_dir: Path, timeout: float) -> None:
    """Drain a broker, remove it from the cluster and stop it. Its data directory is kept."""
    state = supervised_state(data_dir)
    member = state.member(number)
    topology, why, _ = topology_of(state)
    if topology is None:
        raise CommandError(
            why,
            hint=f"check it: moldau cluster status{dir_flag(data_dir)}",
            code=ExitCode.UNREACHABLE,
        )
    if any(broker.id == number for broker in topology.brokers):
        client = client_of(state, without=number)
        drain(client, topology, number, yes=yes, wait=True, seconds_max=timeout)
    state = _request(data_dir, "forget", id=number)
    say(f"broker {number} has left the cluster; its data is still in {data_dir}/{member.directory}")
    _export(state)
