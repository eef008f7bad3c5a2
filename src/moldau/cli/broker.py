"""Owns `moldau dev` and `moldau broker start`: flags to configuration, then the server.

The server is imported only when one of them runs.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from moldau import __version__
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.lazy import Command, LazyGroup, command
from moldau.cli.options import KeyValue

if TYPE_CHECKING:
    from moldau.server.config import ResolvedConfig
    from moldau.server.run import BrokerInfo

_DEV_PRESET: Mapping[str, object] = {"group.initial_rebalance_delay_ms": 0}

_CONFIG = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Configuration: .yaml, .toml, .json, .ini, .env or .properties; also MOLDAU_CONFIG.",
)
_SET = click.option(
    "--set",
    "settings",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, by its key; may be repeated.",
)


@click.group(
    "broker",
    cls=LazyGroup,
    examples=(
        "moldau broker start --data-dir /var/lib/moldau",
        "moldau broker start --config broker.yaml --id 2",
        "moldau broker start --kafka-addr 0.0.0.0:9092 --set kafka.advertised=host.example:9092",
    ),
)
def broker() -> None:
    """Start a broker from a configuration."""


def load(
    flags: Mapping[str, object],
    settings: tuple[tuple[str, str], ...],
    config_file: str | None,
    preset: Mapping[str, object] | None = None,
    option_names: Mapping[str, str] | None = None,
) -> "ResolvedConfig":
    """The configuration of a command: its own flags, --set, the environment and the file."""
    from moldau.server.config import load_config

    given = {key: value for key, value in flags.items() if value is not None}
    for key, _ in settings:
        if key in given:
            raise CommandError(f"{key} is set twice on the command line", code=ExitCode.USAGE)
    names = {key: f"--set {key}" for key, _ in settings} | dict(option_names or {})
    return load_config(
        {**given, **dict(settings)}, os.environ, config_file, preset=preset, option_names=names
    )


def _serve(resolved: "ResolvedConfig", on_ready: Any) -> int:
    from moldau.server.run import run_broker

    return run_broker(resolved.config, on_ready=on_ready)


@broker.command(
    "start",
    cls=Command,
    examples=(
        "moldau broker start --id 1 --data-dir /var/lib/moldau",
        "moldau broker start --config broker.yaml",
        "MOLDAU_LOG__FLUSH=interval moldau broker start --set topic.partitions=6",
    ),
)
@click.option(
    "--id",
    "--broker-id",
    "broker_id",
    metavar="N",
    help="Number of this broker; without it the cluster chooses.",
)
@click.option("--kafka-addr", metavar="HOST:PORT", help="Listener for Kafka clients.")
@click.option("--raft-addr", metavar="HOST:PORT", help="Listener for other brokers.")
@click.option("--grpc-addr", metavar="HOST:PORT", help="Listener of the queue API; not served yet.")
@click.option("--http-addr", metavar="HOST:PORT", help="Listener of the HTTP API.")
@click.option(
    "--join-addr", metavar="HOST:PORT", help="HTTP address of any member of the cluster to join."
)
@click.option("--rack", metavar="NAME", help="Machine or zone; replicas spread over racks.")
@click.option("--data-dir", metavar="DIR", help="Where everything is kept.")
@_CONFIG
@_SET
def start(
    broker_id: str | None,
    kafka_addr: str | None,
    raft_addr: str | None,
    grpc_addr: str | None,
    http_addr: str | None,
    join_addr: str | None,
    rack: str | None,
    data_dir: str | None,
    config_file: str | None,
    settings: tuple[tuple[str, str], ...],
) -> int:
    """Start a broker and run it until it is told to stop (SIGTERM or Ctrl-C)."""
    flags = {
        "broker_id": broker_id,
        "kafka.addr": kafka_addr,
        "raft.addr": raft_addr,
        "grpc.addr": grpc_addr,
        "http.addr": http_addr,
        "join_addr": join_addr,
        "rack": rack,
        "data_dir": data_dir,
    }
    resolved = load(flags, settings, config_file, option_names={"broker_id": "--id"})
    return _serve(resolved, lambda info: click.echo(ready_line(info)))


@command(
    "dev",
    examples=(
        "moldau dev",
        "moldau dev --port 9192 --data-dir /tmp/moldau",
        "moldau dev --set topic.partitions=3 --set log.flush=never",
    ),
)
@click.option("-p", "--port", metavar="PORT", help="Port of the Kafka listener; 0: any free one.")
@click.option("--data-dir", metavar="DIR", help="Where everything is kept.  [default: ./.moldau]")
@_CONFIG
@_SET
def dev(
    port: str | None,
    data_dir: str | None,
    config_file: str | None,
    settings: tuple[tuple[str, str], ...],
) -> int:
    """Start one broker for development, on defaults that need no configuration."""
    flags = {"port": port, "data_dir": data_dir}
    resolved = load(flags, settings, config_file, preset=_DEV_PRESET)
    return _serve(resolved, lambda info: click.echo(f"{ready_line(info)}\n\n{next_steps(info)}"))


def ready_line(info: "BrokerInfo") -> str:
    """One line that people read and programs wait for."""
    return (
        f"moldau {__version__} ready on {info.kafka_addr} "
        f"(broker {info.broker_id}, cluster {info.cluster_id}, data in {info.data_dir})"
    )


def next_steps(info: "BrokerInfo") -> str:
    """What to type now."""
    address = str(info.kafka_addr)
    option = "" if address.endswith(":9092") else f" -b {address}"
    return (
        "Next, in another terminal:\n"
        f"  moldau topic create greetings --partitions 3{option}\n"
        f"  echo hello | moldau produce greetings{option}\n"
        f"  moldau consume greetings --from-beginning{option}\n\n"
        f"Any Kafka client: bootstrap.servers={address} · Ctrl-C stops"
    )
