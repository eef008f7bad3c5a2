"""`moldau dev` and `moldau broker`: start a broker; list, inspect and remove brokers.

The server is imported only to start a broker.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moldau import __version__
from moldau.cli.click_groups import LazyGroup, command
from moldau.cli.cluster.health import broker_problems
from moldau.cli.cluster.problems import problem_rows, problems, say_problems
from moldau.cli.cluster.topology import (
    ask_every_address,
    behind,
    broker_rows,
    complete_brokers,
    connect,
    drain_all,
    find_broker,
    headline,
    http_option,
    partition_count,
    single_copies,
)
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    config_option,
    output_option,
    set_option,
    timeout_option,
    yes_option,
)
from moldau.cli.output import emit_document, emit_rows, emit_table, say
from moldau.model.play import PLAY_OPTION
from moldau.model.process_option import PROCESS_OPTION

if TYPE_CHECKING:
    from moldau.cli.cluster.every_address import Answers
    from moldau.model.play import Playground
    from moldau.model.topology import Topology
    from moldau.server.config.load import ResolvedConfig
    from moldau.server.info import BrokerInfo

_DEV_PRESET: Mapping[str, object] = {
    "bootstrap": True,
    "group.initial_rebalance_delay_ms": 0,
    "group.consumer_heartbeat_interval_ms": 500,
}

_SET = set_option("Any setting")
_INSECURE = click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Serve everyone who reaches the broker, also from other machines.",
)


@click.group(
    "broker",
    cls=LazyGroup,
    lazy={
        "health": (
            "broker_checks:health",
            "Check that the broker of this configuration responds, or is ready.",
        ),
        "can-stop": (
            "broker_checks:can_stop",
            "Check that the cluster can do without a broker, or wait until it can.",
        ),
        "log-level": (
            "log_level:log_level",
            "Show the log levels of brokers, by component, or change one until they restart.",
        ),
    },
    examples=(
        "moldau broker start --data-dir /var/lib/moldau --bootstrap",
        "moldau broker list",
        "moldau broker remove 2",
    ),
)
def broker() -> None:
    """Start a broker; list, inspect and remove the brokers of a cluster."""


def load(
    flags: Mapping[str, object],
    settings: tuple[tuple[str, str], ...],
    config_file: str | None,
    preset: Mapping[str, object] | None = None,
    option_names: Mapping[str, str] | None = None,
) -> "ResolvedConfig":
    """The configuration from flags, --set, the environment and the file."""
    from moldau.server.config.load import load_config

    given = {key: value for key, value in flags.items() if value is not None}
    for key, _ in settings:
        if key in given:
            raise CommandError(f"{key} is set twice on the command line", code=ExitCode.USAGE)
    names = {key: f"--set {key}" for key, _ in settings} | dict(option_names or {})
    return load_config(
        {**given, **dict(settings)}, os.environ, config_file, preset=preset, option_names=names
    )


def _serve(resolved: "ResolvedConfig", on_ready: Any, play: "Playground | None" = None) -> int:
    from moldau.server.run import run_broker

    return run_broker(resolved.config, on_ready=on_ready, play=play)


def _serve_process() -> int:
    """One process of a node, which its supervisor describes on stdin."""
    from moldau.server.node.parent import end_with
    from moldau.server.node.process import read_process
    from moldau.server.run import run_broker

    reason = "stdin is a terminal"
    process = None
    if not sys.stdin.isatty():
        try:
            process = read_process(sys.stdin.buffer)
        except ValueError as error:
            reason = str(error)
    if process is None:
        raise CommandError(
            f"{PROCESS_OPTION} is only for the supervisor of a node: {reason}",
            hint="several processes as one node: moldau broker start --processes N",
            code=ExitCode.USAGE,
        )
    end_with(process.parent)
    return run_broker(
        process.config, on_ready=lambda info: click.echo(ready_line(info)), node=process
    )


@broker.command(
    "start",
    examples=(
        "moldau broker start --data-dir /var/lib/moldau --bootstrap   # first broker of a cluster",
        "moldau broker start --join-addr host1.example:8080 --config broker.yaml",
        "moldau broker start --processes auto --config broker.yaml   # a broker for each core",
    ),
)
@click.option(
    "--id",
    "--broker-id",
    "broker_id",
    metavar="N",
    help="Broker id; the cluster assigns one if it is not given.",
)
@click.option("--kafka-addr", metavar="HOST:PORT", help="Listener for Kafka clients.")
@click.option("--raft-addr", metavar="HOST:PORT", help="Listener for other brokers.")
@click.option("--grpc-addr", metavar="HOST:PORT", help="Listener of the queue API.")
@click.option("--http-addr", metavar="HOST:PORT", help="Listener of the HTTP API.")
@click.option(
    "--join-addr", metavar="HOST:PORT", help="HTTP address of any broker of the cluster to join."
)
@click.option(
    "--bootstrap",
    is_flag=True,
    default=None,
    help="Create a new cluster if the data directory is empty; only for its first broker.",
)
@click.option("--rack", metavar="NAME", help="Zone or rack; replicas are spread over racks.")
@click.option(
    "--machine", metavar="NAME", help="Machine of this broker, if it is not the host name."
)
@click.option("--data-dir", metavar="DIR", help="Data directory.")
@click.option(
    "--processes",
    metavar="N|auto",
    help="Brokers, each a process, behind the same addresses; auto: one per core.  [default: 1]",
)
@click.option(
    PROCESS_OPTION,
    "number",
    hidden=True,
    type=int,
    help="Be this process of a node; its supervisor sets it, and sends the rest to stdin.",
)
@click.option(
    PLAY_OPTION,
    "play_dir",
    hidden=True,
    type=click.Path(path_type=Path),
    help="Lets clients make faults, by the supervisor of this cluster, which sets it.",
)
@_INSECURE
@config_option
@_SET
def start(
    config_file: str | None,
    settings: tuple[tuple[str, str], ...],
    play_dir: Path | None,
    number: int | None,
    **flags: str | bool | None,
) -> int:
    """Run a broker, or several as one node, until SIGTERM or Ctrl-C."""
    if number is not None:
        return _serve_process()
    for listener in ("kafka", "raft", "grpc", "http"):
        flags[f"{listener}.addr"] = flags.pop(f"{listener}_addr")
    flags["security.insecure"] = flags.pop("insecure")
    names = {"broker_id": "--id", "security.insecure": "--insecure"}
    resolved = load(flags, settings, config_file, option_names=names)
    from moldau.server.node.plan import process_count

    if (count := process_count(resolved.config)) > 1:
        from moldau.supervisor.node.run import run_node

        return run_node(resolved.config, count, lambda line: click.echo(line))
    play = None
    if play_dir is not None:
        from moldau.supervisor.playground import SupervisedPlay

        play = SupervisedPlay(play_dir)
    return _serve(resolved, lambda info: click.echo(ready_line(info)), play)


@broker.command(
    "list",
    examples=(
        "moldau broker list",
        "moldau broker list --http host1.example:8080 -o json",
        "moldau broker list -o name",
    ),
)
@output_option
@http_option
def list_brokers(output: str, http: str) -> None:
    """List the brokers of a cluster, with their leaders and replicas."""
    _, topology = connect(http)
    emit_rows(broker_rows(topology), output, name="id")
    if output == "table":
        say(headline(topology))


@broker.command(
    "status",
    examples=(
        "moldau broker status              # exit code 0: healthy, 1: degraded, 3: unreachable",
        "moldau broker status 2            # one broker and its partitions",
        "moldau broker status -o json --http host1.example:8080,host2.example:8080",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=complete_brokers)
@output_option
@http_option
def status(number: int | None, output: str, http: str) -> int:
    """Show the health of all brokers, or one and its partitions, and what remedies each problem.

    Every address of --http is asked. Exits with 0 if all is healthy, 1 if something is degraded, 3
    if no broker responds.
    """
    answers = ask_every_address(http)
    if number is None:
        return _show_all(answers, output)
    return _show_one(answers.topology, number, output)


def _show_all(answers: "Answers", output: str) -> int:
    topology = answers.topology
    found = [*answers.problems, *problems(topology), *broker_problems(topology)]
    single = single_copies(topology)
    notes = [f"{single.text}; add replicas: {single.command}"] if single else []
    notes += answers.notes
    document = {
        "cluster_id": topology.cluster_id,
        "controller": topology.controller,
        "partitions": partition_count(topology),
        "under_replicated": topology.under_replicated,
        "leaderless": topology.leaderless,
        "brokers": broker_rows(topology),
        "problems": problem_rows(found),
        "notes": notes,
    }
    if not emit_document(document, output, name="cluster_id"):
        click.echo(headline(topology) + "\n")
        emit_table(broker_rows(topology))
        say_problems(found)
        for line in notes:
            say(f"note: {line}")
    return ExitCode.FAILED if found else ExitCode.OK


def _show_one(topology: "Topology", number: int, output: str) -> int:
    find_broker(topology, number)
    (row,) = [row for row in broker_rows(topology) if row["id"] == number]
    late = set(behind(topology, number))
    parts = [
        {
            "topic": topic.name,
            "partition": part.partition,
            "role": "leader" if part.leader == number else "follower",
            "in_sync": number in part.in_sync,
            "replicas": list(part.replicas),
        }
        for topic in topology.topics
        for part in topic.partitions
        if number in part.replicas
    ]
    found = broker_problems(topology, only=number)
    document = {**row, "behind": len(late), "partitions": parts}
    document["problems"] = problem_rows(found)
    if not emit_document(document, output, name="id"):
        emit_table([row])
        if parts:
            click.echo()
            emit_table(parts)
        say_problems(found)
    return ExitCode.OK if row["alive"] and not late and not found else ExitCode.FAILED


@broker.command(
    "remove",
    examples=(
        "moldau broker remove 2",
        "moldau broker remove --machine host2      # all brokers of a machine, as those of a node",
        "moldau broker remove 2 --cancel",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=complete_brokers)
@click.option("--machine", metavar="NAME", help="All brokers of this machine, in place of N.")
@click.option("--cancel", is_flag=True, help="Cancel the drain: the broker stays.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has left.  [default: wait]")
@timeout_option("30m")
@yes_option
@http_option
def remove(
    number: int | None,
    machine: str | None,
    cancel: bool,
    wait: bool,
    timeout: float,
    yes: bool,
    http: str,
) -> None:
    """Drain a broker: move its replicas to other brokers, then remove it from the cluster."""
    client, topology = connect(http)
    numbers = _chosen(topology, number, machine)
    if cancel:
        for one in numbers:
            find_broker(topology, one)
            client.keep(one)
            say(f"cancelled the drain of broker {one}")
        return
    if drain_all(client, topology, numbers, yes=yes, wait=wait, seconds_max=timeout):
        for one in numbers:
            say(f"broker {one} has left the cluster; its process exits")


def _chosen(topology: "Topology", number: int | None, machine: str | None) -> list[int]:
    """Brokers by number, or all of a machine. Raises CommandError."""
    if (number is None) == (machine is None):
        raise CommandError(
            "which broker? give its number, or a machine",
            hint="list them: moldau broker list · moldau broker remove N, or --machine NAME",
            code=ExitCode.USAGE,
        )
    if number is not None:
        return [number]
    found = [broker.id for broker in topology.brokers if broker.machine == machine]
    if not found:
        known = sorted({broker.machine for broker in topology.brokers if broker.machine})
        raise CommandError(
            f"no broker of this cluster is on a machine {machine}",
            hint=f"machines: {', '.join(known)}",
            code=ExitCode.NOT_FOUND,
        )
    return found


@command(
    "dev",
    examples=(
        "moldau dev",
        "moldau dev --port 9192 --data-dir /tmp/moldau",
        "moldau dev --set topic.partitions=3 --set log.flush=never",
    ),
)
@click.option(
    "-p",
    "--port",
    metavar="PORT",
    help="Kafka port; the Raft, HTTP and gRPC ports shift by the same amount. 0: any free ports.",
)
@click.option("--data-dir", metavar="DIR", help="Data directory.  [default: ./.moldau]")
@config_option
@_SET
def dev(
    port: str | None,
    data_dir: str | None,
    config_file: str | None,
    settings: tuple[tuple[str, str], ...],
) -> int:
    """Start one broker for development, without configuration."""
    flags = {"port": port, "data_dir": data_dir}
    resolved = load(flags, settings, config_file, preset={**_DEV_PRESET, **_shifted_ports(port)})
    from moldau.server.node.plan import process_count

    if process_count(resolved.config) > 1:
        raise CommandError(
            f"processes is {resolved.config.processes} ({resolved.sources['processes']}), and "
            "moldau dev runs one",
            hint="several: moldau broker start --processes N --bootstrap · or: --set processes=1",
            code=ExitCode.USAGE,
        )
    from moldau.supervisor.playground import LonePlay

    return _serve(
        resolved,
        lambda info: click.echo(f"{ready_line(info)}\n\n{next_steps(info)}"),
        LonePlay(say),
    )


def _shifted_ports(port: str | None) -> dict[str, object]:
    """The other ports, shifted like the Kafka port, so that several brokers can run."""
    if port is None or not (port.isascii() and port.isdigit()):
        return {}
    number = int(port)
    moved = {}
    for key, usual in (("raft.addr", 19092), ("http.addr", 8080), ("grpc.addr", 8000)):
        shifted = usual + number - 9092 if number else 0
        moved[key] = f"127.0.0.1:{shifted if 0 < shifted <= 65535 else 0}"
    return dict(moved)


def ready_line(info: "BrokerInfo") -> str:
    """The line that scripts and the supervisor wait for; it names all listeners."""
    scheme = "https" if info.http_tls else "http"
    addresses = [
        f"Kafka {info.kafka_addr}",
        *([f"gRPC {info.grpc_addr}"] if info.grpc_addr else []),
        f"HTTP {scheme}://{info.http_addr}",
        f"Raft {info.raft_addr}",
        f"console {scheme}://{info.http_addr}/ui/",
    ]
    return (
        f"moldau {__version__} ready on {info.kafka_addr} "
        f"(broker {info.broker_id}, cluster {info.cluster_id}, data in {info.data_dir}): "
        f"{', '.join(addresses)}"
    )


def next_steps(info: "BrokerInfo") -> str:
    address = str(info.kafka_addr)
    option = "" if address.endswith(":9092") else f" -b {address}"
    web = str(info.http_addr)
    http = "" if web.endswith(":8080") else f" --http {web}"
    return (
        "Next, in another terminal:\n"
        f"  moldau topic create greetings --partitions 3{option}\n"
        f"  echo hello | moldau produce greetings{option}\n"
        f"  moldau consume greetings --from-beginning{option}\n"
        f"  moldau ui{http}  # the web console\n\n"
        f"Any Kafka client: bootstrap.servers={address} · Ctrl-C stops"
    )
