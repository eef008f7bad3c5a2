"""Owns `moldau cluster`: several brokers on one machine, started, watched and stopped together.

The brokers belong to a supervisor (supervise.py), in this process or in one of its own. The
commands here ask it; without one they can only look, and stop what it left behind.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from moldau.cli.click_groups import Command, LazyGroup
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
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Duration,
    KeyValue,
    Properties,
    complete_topics,
    output_option,
    yes_option,
)
from moldau.cli.output import counted, emit_document, emit_table, say
from moldau.client.processes import send_signal, wait_until_ended
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.state import (
    DEFAULT_DIR,
    ClusterState,
    Member,
    is_locked,
    load_state,
    locked,
    need_state,
)

_POLL_SECONDS = 0.1
_KILL_SECONDS_MAX = 10.0
_STOP_SECONDS_MAX = 45.0

_F = TypeVar("_F", bound=Callable[..., Any])


def _dir_option(function: _F) -> _F:
    return click.option(
        "--data-dir",
        "data_dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DIR,
        show_default=True,
        metavar="DIR",
        is_eager=True,
        help="The cluster's directory.",
    )(function)


def _timeout_option(default: str) -> Callable[[_F], _F]:
    return click.option(
        "--timeout", type=Duration(), default=default, show_default=True, help="Longest to wait."
    )


def _ports_options(text: str) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for name, shown, default in (
            ("grpc", "gRPC", "along with HTTP, 8000"),
            ("http", "HTTP", "8080"),
            ("raft", "Raft", "19092"),
            ("kafka", "Kafka", "9092"),
        ):
            function = click.option(
                f"--{name}-port",
                type=click.IntRange(0, 65535),
                metavar="PORT",
                help=text.format(name=shown, at=default),
            )(function)
        return function

    return decorate


def _complete_members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    try:
        state = load_state(Path(ctx.params.get("data_dir") or DEFAULT_DIR))
    except CommandError:
        return []
    return [
        CompletionItem(str(member.id), help=f"{member.kafka}, {member.state}")
        for member in (state.brokers if state else [])
        if str(member.id).startswith(incomplete)
    ]


@click.group(
    "cluster",
    cls=LazyGroup,
    examples=(
        "moldau cluster start -n 3",
        "moldau cluster status          # in another terminal",
        "moldau cluster kill 2          # and see that nothing is lost",
    ),
)
def cluster() -> None:
    """Run several brokers on this machine, supervised; look at them and stop them."""


# ---- start


@cluster.command(
    "start",
    cls=Command,
    examples=(
        "moldau cluster start -n 3",
        "moldau cluster start -n 3 -d --data-dir /var/lib/moldau",
        "moldau cluster start --kafka-port 0 --raft-port 0 --http-port 0 --set topic.partitions=6",
    ),
)
@click.option(
    "-n",
    "--brokers",
    "count",
    type=click.IntRange(1, 100),
    help="How many brokers a new cluster has.  [default: 3]",
)
@_dir_option
@click.option("-d", "--detach", is_flag=True, help="Go on in the background once it is up.")
@_ports_options("{name} port of broker 1, the n-th has + n - 1; 0: any free ones.  [default: {at}]")
@click.option(
    "--set",
    "settings",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, for all brokers; kept for later starts; may be repeated.",
)
@_timeout_option("3m")
def start(
    count: int | None,
    data_dir: Path,
    detach: bool,
    kafka_port: int | None,
    raft_port: int | None,
    http_port: int | None,
    grpc_port: int | None,
    settings: Properties,
    timeout: float,
) -> int:
    """Start a cluster on this machine, or start again the one that is in the directory.

    The brokers are supervised: one that dies is started again. Ctrl-C stops them all.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with locked(data_dir):
        ports = (kafka_port, raft_port, http_port, grpc_port)
        state = prepare(data_dir, count, ports, settings)
        if not detach:
            return run_here(data_dir, state, lambda: _show_started(data_dir, state, detach))
    state = run_detached(data_dir, timeout)
    return _show_started(data_dir, state, detach)


@cluster.command(
    "run",
    cls=Command,
    hidden=True,
    examples=(
        "moldau cluster run",
        "moldau cluster run --data-dir /var/lib/moldau",
        "exec moldau cluster run --data-dir /var/lib/moldau   # below another supervisor",
    ),
)
@_dir_option
def run(data_dir: Path) -> int:
    """Supervise the cluster of a directory; what `start -d` leaves behind."""
    with locked(data_dir):
        return run_here(data_dir, need_state(data_dir), lambda: None)


def _show_started(data_dir: Path, state: ClusterState, detached: bool) -> int:
    emit_table(member_rows(data_dir, state))
    factor = state.replication_factor
    say(
        f"\nTopics have {counted(factor, 'replica')} unless they say otherwise "
        f"(topic.replication_factor={factor}). Logs: {data_dir}/broker-N.log"
    )
    if detached:
        say(f"Stop it: moldau cluster stop{dir_flag(data_dir)}\n")
    else:
        say(f"Look at it: moldau cluster status{dir_flag(data_dir)} · Ctrl-C stops it\n")
    _export(state)
    down = [member for member in state.brokers if member.state != "ready"]
    for member in down:
        say(f"broker {member.id} is not up ({member.state}): {one_line(member.reason)}")
    return ExitCode.FAILED if down else ExitCode.OK


def _export(state: ClusterState) -> None:
    """Lines for the shell: where clients connect, and where commands ask over HTTP and gRPC."""
    click.echo(f"export MOLDAU_BROKERS={state.bootstrap}")
    click.echo(f"export MOLDAU_HTTP={','.join(member.http for member in state.brokers)}")
    click.echo(f"export MOLDAU_GRPC={','.join(member.grpc for member in state.brokers)}")


# ---- look


@cluster.command(
    "status",
    cls=Command,
    examples=(
        "moldau cluster status",
        "moldau cluster status -o json",
        "moldau cluster status && echo all is well",
    ),
)
@_dir_option
@output_option
def status(data_dir: Path, output: str) -> int:
    """Show brokers and partitions; exit code 1 if something is wrong."""
    state, supervised = live(data_dir)
    topology = topology_of(state)
    found = member_problems(data_dir, state, supervised, topology)
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
        "problems": found,
    }
    if not emit_document(document, output, name="cluster_id"):
        if topology is not None:
            click.echo(headline(topology) + "\n")
        emit_table(rows)
        if found:
            say()
        for line in found:
            say(f"problem: {line}")
        for number in departed(state, topology):
            say(
                f"note: broker {number} has left the cluster; "
                f"end and forget it: moldau cluster remove {number}{dir_flag(data_dir)}"
            )
    return ExitCode.FAILED if found else ExitCode.OK


# ---- change


def _ask(data_dir: Path, verb: str, **arguments: object) -> ClusterState:
    """Ask the supervisor, which must be there."""
    reply = send_request(supervised_state(data_dir).control, verb, **arguments)
    if reply is None:
        raise CommandError("the cluster's supervisor has gone", hint="moldau cluster status")
    return state_of(reply)


def _await_member(
    data_dir: Path, number: int, condition: Callable[[Member], bool], seconds_max: float
) -> Member:
    """Wait until a broker is as wanted. Raises CommandError if it fails, or time is up."""
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
                f"broker {number} is {member.state} after {seconds_max:g} s",
                hint=f"look again: moldau cluster status{dir_flag(data_dir)} "
                f"· its log: {data_dir}/broker-{number}.log",
            )
        time.sleep(_POLL_SECONDS)


@cluster.command(
    "stop",
    cls=Command,
    examples=(
        "moldau cluster stop",
        "moldau cluster stop --data-dir /var/lib/moldau",
        "moldau cluster stop 2          # one broker, cleanly; the others go on",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=_complete_members)
@_dir_option
@_timeout_option("3m")
def stop(number: int | None, data_dir: Path, timeout: float) -> None:
    """Stop all brokers cleanly, or one of them. Their data stays."""
    if number is not None:
        _ask(data_dir, "stop", id=number)
        _await_member(data_dir, number, lambda member: member.pid is None, timeout)
        say(f"stopped broker {number}")
        return
    state, supervised = live(data_dir)
    if not supervised:
        _stop_strays(data_dir, state)
        return
    send_request(state.control, "stop")
    deadline = time.monotonic() + timeout
    while is_locked(data_dir):
        if time.monotonic() >= deadline:
            raise CommandError(
                f"the cluster was not down within {timeout:g} s",
                hint=f"it goes on stopping; look: moldau cluster status{dir_flag(data_dir)}",
            )
        time.sleep(_POLL_SECONDS)
    say(f"stopped {counted(len(state.brokers), 'broker')}")


def _stop_strays(data_dir: Path, state: ClusterState) -> None:
    """Stop what a killed supervisor left, the founder last; never a process that is not ours."""
    count = 0
    for member in reversed(state.brokers):
        process = member.process
        if process is None or not send_signal(process, signal.SIGTERM):
            continue
        if not wait_until_ended(process, _STOP_SECONDS_MAX):
            say(f"broker {member.id} does not stop: killed")
            send_signal(process, signal.SIGKILL)
            wait_until_ended(process, _KILL_SECONDS_MAX)
        count += 1
    if count:
        say(f"stopped {counted(count, 'broker')} that had lost their supervisor")
    else:
        say(f"the cluster in {data_dir} is not running")


@cluster.command(
    "kill",
    cls=Command,
    examples=(
        "moldau cluster kill 2",
        "moldau cluster kill --leader-of orders",
        "moldau cluster kill 2 && moldau cluster status",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=_complete_members)
@click.option("--leader-of", "topic", metavar="TOPIC", shell_complete=complete_topics,
              help="The one that leads the topic's first partition.")  # fmt: skip
@_dir_option
def kill(number: int | None, topic: str | None, data_dir: Path) -> None:
    """Kill a broker, as a crash would (SIGKILL). It stays down until it is restarted."""
    state = supervised_state(data_dir)
    if (number is None) == (topic is None):
        raise CommandError(
            "say which broker to kill, by number or by --leader-of",
            hint=f"its brokers: {', '.join(str(member.id) for member in state.brokers)}",
            code=ExitCode.USAGE,
        )
    if number is None:
        number = _leader_of(state, str(topic))
    pid = state.member(number).pid
    _ask(data_dir, "kill", id=number)
    _await_member(data_dir, number, lambda member: member.pid is None, _KILL_SECONDS_MAX)
    say(
        f"killed broker {number} (pid {pid}); it stays down until: "
        f"moldau cluster restart {number}{dir_flag(data_dir)}"
    )


def _leader_of(state: ClusterState, topic: str) -> int:
    found = client_of(state).topology([topic]).topics
    if not found:
        raise CommandError(
            f"there is no topic {topic}", hint="moldau topic list", code=ExitCode.NOT_FOUND
        )
    leader = found[0].partitions[0].leader
    if leader < 0:
        raise CommandError(f"nobody leads {topic} just now", hint="try again in a moment")
    return leader


@cluster.command(
    "restart",
    cls=Command,
    examples=(
        "moldau cluster restart 2",
        "moldau cluster restart --all   # one after the other, each in sync before the next",
        "moldau cluster restart --down  # what was killed or has died",
    ),
)
@click.argument("numbers", metavar="[N]...", type=int, nargs=-1, shell_complete=_complete_members)
@click.option("--all", "every", is_flag=True, help="All of them, one after the other.")
@click.option("--down", is_flag=True, help="Those that do not run.")
@click.option("--wait/--no-wait", default=True, help="Until it is in sync.  [default: wait]")
@_dir_option
@_timeout_option("3m")
def restart(
    numbers: tuple[int, ...], every: bool, down: bool, wait: bool, data_dir: Path, timeout: float
) -> None:
    """Start a broker that is down, or stop one cleanly and start it again."""
    state = supervised_state(data_dir)
    if every + down + bool(numbers) != 1:
        raise CommandError(
            "say which broker to restart, or --all, or --down",
            hint=f"its brokers: {', '.join(str(member.id) for member in state.brokers)}",
            code=ExitCode.USAGE,
        )
    if every:
        numbers = tuple(member.id for member in state.brokers)
    elif down:
        numbers = tuple(member.id for member in state.brokers if member.pid is None)
        if not numbers:
            say("every broker runs")
    for number in numbers:
        before = state.member(number).pid
        state = _ask(data_dir, "restart", id=number)
        if not wait:
            say(f"broker {number} is being restarted")
            continue

        def is_new(member: Member, before: int | None = before) -> bool:
            return member.state == "ready" and member.pid != before

        member = _await_member(data_dir, number, is_new, timeout)
        state = supervised_state(data_dir)
        wait_in_sync(client_of(state), number, timeout)
        say(f"broker {number} is back and in sync (pid {member.pid})")


@cluster.command(
    "add",
    cls=Command,
    examples=(
        "moldau cluster add",
        "moldau cluster add --kafka-port 9192 --data-dir /var/lib/moldau",
        "moldau cluster add && moldau partition move orders --to 1,2,4",
    ),
)
@_dir_option
@_ports_options("Its {name} port; 0: any free one.  [default: the next one]")
@_timeout_option("3m")
def add(
    data_dir: Path,
    kafka_port: int | None,
    raft_port: int | None,
    http_port: int | None,
    grpc_port: int | None,
    timeout: float,
) -> None:
    """Let a further broker join the running cluster."""
    ports = {"kafka": kafka_port, "raft": raft_port, "http": http_port, "grpc": grpc_port}
    state = _ask(data_dir, "add", **ports)
    number = state.brokers[-1].id
    _await_member(data_dir, number, lambda member: member.state == "ready", timeout)
    state = supervised_state(data_dir)
    emit_table([row for row in member_rows(data_dir, state) if row["id"] == number])
    say(
        f"\nbroker {number} has joined: new topics use it; "
        f"existing ones stay: moldau partition move TOPIC --to …,{number}\n"
    )
    _export(state)


@cluster.command(
    "remove",
    cls=Command,
    examples=(
        "moldau cluster remove 4",
        "moldau cluster remove 1 -y",
        "moldau cluster remove 4 --data-dir /var/lib/moldau",
    ),
)
@click.argument("number", metavar="N", type=int, shell_complete=_complete_members)
@yes_option
@_dir_option
@_timeout_option("30m")
def remove(number: int, yes: bool, data_dir: Path, timeout: float) -> None:
    """Drain a broker, take it out of the cluster and stop it. Its directory stays."""
    state = supervised_state(data_dir)
    member = state.member(number)
    topology = topology_of(state)
    if topology is None:
        raise CommandError(
            "no broker of the cluster answers over HTTP",
            hint=f"look at it: moldau cluster status{dir_flag(data_dir)}",
            code=ExitCode.UNREACHABLE,
        )
    if any(broker.id == number for broker in topology.brokers):
        client = client_of(state, without=number)
        drain(client, topology, number, yes=yes, wait=True, seconds_max=timeout)
    state = _ask(data_dir, "forget", id=number)
    say(f"broker {number} has left the cluster; its data is still in {data_dir}/{member.directory}")
    _export(state)
