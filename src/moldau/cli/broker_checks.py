"""`moldau broker health` and `can-stop`: checks for containers, probes and rolling restarts."""

import http.client
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moldau.cli.broker import load
from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import (
    TopologyWatch,
    complete_brokers,
    connect,
    find_broker,
    http_option,
)
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import config_option, set_option, timeout_option
from moldau.cli.output import counted, say
from moldau.client.retry import connect_failure

if TYPE_CHECKING:
    from moldau.model.topology import Topology
    from moldau.server.config.schema import ServerConfig
    from moldau.server.config.security_schema import ListenerConfig

_SECONDS_MAX: Final = 3.0
_ANY_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_NAMES_MAX: Final = 5
_READY: Final = 200
METADATA: Final = "the metadata group"
"""Among what a broker is needed for."""


@command(
    "health",
    examples=(
        "moldau broker health                  # exits with 1 if it does not respond",
        "moldau broker health --ready          # exits with 1 while it does not serve clients",
        "moldau broker health --config broker.yaml",
    ),
)
@click.option("--ready", is_flag=True, help="Check that it is ready to serve clients.")
@config_option
@set_option("Any setting")
def health(ready: bool, config_file: str | None, settings: tuple[tuple[str, str], ...]) -> int:
    """Check that the broker of this configuration responds on this machine, or is ready.

    Reads the address from the same flags, variables and file as `moldau broker start`, and needs no
    login. Whether a broker responds does not depend on other brokers.
    """
    from moldau.server.config.listeners import listeners_for
    from moldau.server.config.security_schema import ListenerProtocol

    config = load({}, settings, config_file).config
    (listener,) = listeners_for(config, ListenerProtocol.HTTP)
    path = "/readyz" if ready else "/healthz"
    try:
        status, text = _get(config, listener, path)
    except (OSError, http.client.HTTPException) as error:
        reason = connect_failure(error, _SECONDS_MAX) if isinstance(error, OSError) else str(error)
        raise CommandError(
            f"no broker responds at {listener.address} ({listener.setting}): {reason}",
            hint="is it running with this configuration? the log of its start says why not",
        ) from None
    click.echo(text)
    return ExitCode.OK if status == _READY else ExitCode.FAILED


def _get(config: "ServerConfig", listener: "ListenerConfig", path: str) -> tuple[int, str]:
    """Raises OSError, HTTPException."""
    address = listener.address
    host = _ANY_HOSTS.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=_SECONDS_MAX)
    if listener.uses_tls:
        context = ssl.create_default_context()
        # On this machine, at an address that the certificate need not have.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        _load_own(context, config, listener)
        connection = http.client.HTTPSConnection(
            host, address.port, timeout=_SECONDS_MAX, context=context
        )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _load_own(context: ssl.SSLContext, config: "ServerConfig", listener: "ListenerConfig") -> None:
    """With mtls the broker asks for a certificate: its own is one."""
    from moldau.server.config.listeners import split_files
    from moldau.server.config.security_schema import ListenerSecurity

    if listener.security is ListenerSecurity.MTLS:
        chain = split_files(listener.cert_file or config.security.cert_file or "")[0]
        key = split_files(listener.key_file or config.security.key_file or "")[0]
        password = config.security.key_password
        context.load_cert_chain(chain, key, password.reveal() if password else "")


@command(
    "can-stop",
    examples=(
        "moldau broker can-stop 2                      # exits with 1 if it cannot",
        "moldau broker can-stop 2 --timeout 5m         # waits until it can",
        "moldau broker can-stop --whole-node /var/lib/moldau   # all processes of the node here",
    ),
)
@click.argument("number", metavar="[N]", type=int, required=False, shell_complete=complete_brokers)
@timeout_option("0s", "Wait this long until it can.")
@click.option(
    "--whole-machine",
    is_flag=True,
    help="Check it for all brokers of its machine at once, also those of other nodes.",
)
@click.option(
    "--whole-node",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Check it for all processes of the node with this data directory at once.",
)
@http_option
def can_stop(
    number: int | None, timeout: float, whole_machine: bool, whole_node: Path | None, http: str
) -> int:
    """Check that the cluster can do without a broker; without N, without the one that responds.

    It can if every partition of the broker has a majority of its replicas in sync on others, and
    the voters of the metadata that are alive are a majority without it. What has too few replicas
    or voters for that is not waited for. SIGTERM then transfers the leaderships of the broker to
    others.
    """
    if whole_node is not None and (whole_machine or number is not None):
        raise click.UsageError("--whole-node says which brokers: leave out N and --whole-machine")
    node = None if whole_node is None else brokers_of_node(whole_node)
    client, topology = connect(http)
    me = topology.answered_by if number is None else number
    watch = TopologyWatch(client, timeout)
    while True:
        stopping = node or _on_machine(topology, me, whole_machine)
        needed = needs(topology, *stopping)
        who = f"broker {', '.join(map(str, stopping))}"
        if not needed:
            say(f"the cluster can do without {who}")
            return ExitCode.OK
        if watch.is_over:
            break
        topology = watch.poll() or topology
    raise CommandError(
        f"{who} is needed for {_listed(needed)}",
        hint="others are down, or not in sync: moldau broker list, moldau broker status; "
        "wait for them: --timeout 5m",
    )


def brokers_of_node(directory: Path) -> list[int]:
    """The brokers whose directories are in this one, but for those that have left the cluster."""
    from moldau.server.node.directories import stored_processes

    found = [
        one.broker_id
        for one in stored_processes(directory.absolute()).values()
        if one.broker_id is not None and not one.is_removed
    ]
    if not found:
        raise CommandError(
            f"{directory} has no broker of a cluster",
            hint="name the data directory of the node: --whole-node DIR",
        )
    return found


def _on_machine(topology: "Topology", me: int, whole_machine: bool) -> list[int]:
    machine = find_broker(topology, me).machine
    if not whole_machine or machine is None:
        return [me]
    return [broker.id for broker in topology.brokers if broker.machine == machine]


def _listed(needed: list[str]) -> str:
    partitions = [each for each in needed if each != METADATA]
    found = [METADATA] if METADATA in needed else []
    if partitions:
        shown = ", ".join(partitions[:_NAMES_MAX]) + (", …" if partitions[_NAMES_MAX:] else "")
        found.append(f"{counted(len(partitions), 'partition')}: {shown}")
    return " and ".join(found)


def needs(topology: "Topology", *numbers: int) -> list[str]:
    """What would lose its majority without these brokers, until others catch up: the metadata
    first, then partitions."""
    gone = set(numbers)
    alive = {broker.id for broker in topology.brokers if broker.alive}
    found = [METADATA] if _loses_majority(topology.voters, alive, gone) else []
    for topic in topology.topics:
        for part in topic.partitions:
            if _loses_majority(part.replicas, alive & set(part.in_sync), gone):
                found.append(f"{topic.name}:{part.partition}")
    return found


def _loses_majority(members: tuple[int, ...], ready: set[int], gone: set[int]) -> bool:
    """False if the others are too few for a majority even if all are ready."""
    others = set(members) - gone
    majority = len(members) // 2 + 1
    return not gone.isdisjoint(members) and len(others & ready) < majority <= len(others)
