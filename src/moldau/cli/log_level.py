"""`moldau broker log-level`: shows and changes the levels of the log of running brokers."""

from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import complete_brokers, connect, find_broker, http_option
from moldau.cli.connection.clients import cluster_client
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import completions, output_option
from moldau.cli.output import emit_rows, say
from moldau.model.errors import MoldauError
from moldau.model.log_levels import COMPONENTS, DEFAULT, NAMES, LogLevel

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.model.topology import Topology

RESET = "reset"
_LEVELS = (*(level.value for level in LogLevel), RESET)


def _complete_components(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    about = {name: component.about for name, component in COMPONENTS.items()}
    return completions(incomplete, {DEFAULT: "all without their own", **about})


@command(
    "log-level",
    examples=(
        "moldau broker log-level",
        "moldau broker log-level raft debug --broker 2",
        "moldau broker log-level raft reset",
    ),
)
@click.argument("component", required=False, shell_complete=_complete_components)
@click.argument("level", required=False, type=click.Choice(_LEVELS))
@click.option(
    "--broker",
    "number",
    metavar="N",
    type=int,
    shell_complete=complete_brokers,
    help="Only of this broker.  [default: all]",
)
@output_option
@http_option
def log_level(
    component: str | None, level: str | None, number: int | None, output: str, http: str
) -> int:
    """Show the log levels of brokers, by component, or change one until the brokers restart."""
    if component is not None and component not in NAMES:
        raise CommandError(
            f"the log has no component {component!r}",
            hint=f"components: {', '.join(NAMES)}",
            code=ExitCode.USAGE,
        )
    rows: list[dict[str, Any]] = []
    failures = []
    for broker, client in _clients(http, number):
        try:
            if component is not None and level is not None:
                wanted = {component: None if level == RESET else level}
                found = client.set_log_levels(broker, wanted)
            else:
                found = client.log_levels(broker)
        except MoldauError as error:
            if number is not None:
                raise
            failures.append(f"broker {broker}: {error}")
            continue
        rows += [
            {
                "broker": found.broker,
                "component": each.component,
                "level": each.level,
                "configured": each.configured,
                "about": each.about,
            }
            for each in found.levels
            if component in (None, each.component)
        ]
    emit_rows(rows, output, name="component")
    for failure in failures:
        say(f"problem: {failure}")
    if level is not None and rows and output == "table":
        say("until the brokers restart; to keep it, use the setting logging.levels")
    return ExitCode.FAILED if failures else ExitCode.OK


def _clients(http: str, number: int | None) -> list[tuple[int, "ClusterClient"]]:
    """A client of each broker that is to be asked, at its own address."""
    _, topology = connect(http)
    if number is not None:
        find_broker(topology, number)
    wanted = [each.id for each in topology.brokers if number in (None, each.id)]
    return [(broker, cluster_client([_address(topology, broker)])) for broker in wanted]


def _address(topology: "Topology", broker: int) -> str:
    found = find_broker(topology, broker).http
    if found is None:
        raise CommandError(
            f"broker {broker} has no HTTP address", hint="it has not registered yet: retry"
        )
    return str(found)
