"""`moldau cluster config`: settings of brokers that change while they run."""

import difflib
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    KeyValue,
    Properties,
    output_option,
    plain_brokers_option,
)
from moldau.cli.output import emit_rows, say

if TYPE_CHECKING:
    from moldau.client.wire.config_admin import ConfigAdmin, SettingInfo

_BROKER = click.option(
    "--broker", type=Integer(0), metavar="N", help="Only of this broker.  [default: all brokers]"
)


@click.group(
    "config",
    cls=LazyGroup,
    examples=(
        "moldau cluster config get",
        "moldau cluster config set log.retention.ms=86400000",
        "moldau cluster config set --broker 2 max.connections=500",
    ),
)
def config() -> None:
    """Read and change settings of running brokers, without a restart."""


def _admin(brokers: str) -> "ConfigAdmin":
    from moldau.client.wire.config_admin import ConfigAdmin

    return ConfigAdmin(brokers, current_security())


@config.command(
    "get",
    examples=(
        "moldau cluster config get                       # all that can change at run time",
        "moldau cluster config get log.retention.ms max.connections",
        "moldau cluster config get --broker 2 --all -o json",
    ),
)
@click.argument("names", metavar="[SETTING]...", nargs=-1)
@_BROKER
@click.option("-a", "--all", "show_all", is_flag=True, help="Include what only a restart changes.")
@output_option
@plain_brokers_option
def get(
    names: tuple[str, ...], broker: int | None, show_all: bool, output: str, brokers: str
) -> None:
    """Show settings with their values, and where each value was set.

    The source is broker or cluster (set at run time), start (the file, environment or flags of the
    broker, or their defaults), or default.
    """
    with _admin(brokers) as admin:
        number = admin.responsive_broker() if broker is None else broker
        found = {each.name: each for each in admin.settings(number)}
    wanted = [_known(name, found) for name in names]
    rows = [
        _row(each)
        for each in found.values()
        if (each.name in wanted if names else show_all or not each.read_only)
    ]
    if broker is None and output == "table":
        say(f"as broker {number} has them; of another one: --broker N")
    emit_rows(rows, output, name="name")


def _row(each: "SettingInfo") -> dict[str, Any]:
    return {
        "name": each.name,
        "value": each.value,
        "source": each.source,
        "restart": each.read_only,
        "description": each.documentation,
    }


@config.command(
    "set",
    examples=(
        "moldau cluster config set log.retention.ms=86400000 message.max.bytes=2000000",
        "moldau cluster config set --broker 2 max.connections=500",
        "moldau cluster config set --delete log.retention.ms    # back to the brokers' own",
    ),
)
@click.argument("values", metavar="[SETTING=VALUE]...", type=KeyValue(), nargs=-1)
@click.option(
    "-d",
    "--delete",
    "removed",
    multiple=True,
    metavar="SETTING",
    help="Forget the value that was set at run time; may be repeated.",
)
@_BROKER
@click.option("--dry-run", is_flag=True, help="Only check the values.")
@plain_brokers_option
def set_values(
    values: Properties, removed: tuple[str, ...], broker: int | None, dry_run: bool, brokers: str
) -> None:
    """Change settings of all brokers, or of one, while they run.

    The values are stored in the cluster: brokers keep them over restarts, and they win over files
    and flags. A value for one broker wins over that for all.
    """
    if not values and not removed:
        raise CommandError(
            "nothing to change",
            hint="write SETTING=VALUE, or --delete SETTING",
            code=ExitCode.USAGE,
        )
    with _admin(brokers) as admin:
        number = admin.responsive_broker() if broker is None else broker
        found = {each.name: each for each in admin.settings(number)}
        chosen = {_changeable(name, found): value for name, value in values}
        dropped = [_changeable(name, found) for name in removed]
        admin.change(broker, chosen, dropped, validate_only=dry_run)
    whose = "all brokers" if broker is None else f"broker {broker}"
    names = ", ".join([*chosen, *dropped])
    say(f"{names} would change for {whose}" if dry_run else f"changed {names} for {whose}")


def _changeable(name: str, found: "dict[str, SettingInfo]") -> str:
    """The name at run time. Raises CommandError for a setting that needs a restart."""
    known = _known(name, found)
    if found[known].read_only:
        raise _needs_restart(known)
    return known


def _known(name: str, found: "dict[str, SettingInfo]") -> str:
    """The name at run time of a setting, which may be given as in the file.

    Raises CommandError for an unknown one.
    """
    from moldau.server.config.keys import KEYS

    if name in found:
        return name
    key = KEYS.get(name)
    if key is not None and key.setting.runtime in found:
        return key.setting.runtime
    if key is not None:
        raise _needs_restart(name)
    close = difflib.get_close_matches(name, [*found, *KEYS], n=1)
    raise CommandError(
        f"unknown setting {name}",
        hint=f"did you mean {close[0]}?" if close else "list them: moldau cluster config get --all",
        code=ExitCode.USAGE,
    )


def _needs_restart(name: str) -> CommandError:
    return CommandError(
        f"{name} changes only by a restart of the broker",
        hint="set it in the broker's configuration and restart it; what can change at run time: "
        "moldau cluster config get",
        code=ExitCode.USAGE,
    )
