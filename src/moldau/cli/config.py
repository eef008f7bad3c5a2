"""`moldau config`: writes a configuration file, and shows effective settings and their source."""

import os
from typing import Any

import click

from moldau.cli.broker import load
from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError
from moldau.cli.options import config_option, output_option, set_option
from moldau.cli.output import emit_document, emit_rows, say

Settings = tuple[tuple[str, str], ...]


@click.group(
    "config",
    cls=LazyGroup,
    examples=(
        "moldau config init broker.yaml",
        "moldau config show --config broker.yaml",
        "MOLDAU_LOG__FLUSH=never moldau config show --changed",
    ),
)
def config() -> None:
    """Write a configuration file; show the effective settings."""


@config.command(
    "init",
    examples=(
        "moldau config init",
        "moldau config init /etc/moldau/broker.yaml --set broker_id=2",
        "moldau config init - | less",
    ),
)
@click.argument("file", default="broker.yaml", type=click.Path(dir_okay=False))
@set_option("Set a value in the new file")
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing file.")
def init(file: str, settings: Settings, force: bool) -> None:
    """Write a YAML file with every setting, its description and default (- for stdout)."""
    from moldau.server.config.keys import ALIASES
    from moldau.server.config.load import load_config
    from moldau.server.config.render import render_file

    names = {key: f"--set {key}" for key, _ in settings}
    resolved = load_config(dict(settings), {}, option_names=names)
    keys = [ALIASES[key].target if key in ALIASES else key for key, _ in settings]
    text = render_file({key: resolved.value(key) for key in keys})
    if file == "-":
        click.echo(text, nl=False)
        return
    if not file.endswith((".yaml", ".yml")):
        raise CommandError(f"{file} must end in .yaml or .yml")
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise CommandError(f"{file} already exists", hint="overwrite it: --force") from None
    say(f"wrote {file}; start a broker: moldau broker start --bootstrap --config {file}")


@config.command(
    "show",
    examples=(
        "moldau config show",
        "moldau config show --config broker.yaml --changed",
        "moldau config show -o json",
    ),
)
@config_option
@set_option("Override a setting")
@click.option("--changed", is_flag=True, help="Only settings that differ from their default.")
@output_option
def show(config_file: str | None, settings: Settings, changed: bool, output: str) -> None:
    """Print every setting with its value and its source."""
    from moldau.server.config.keys import KEYS
    from moldau.server.config.load import Layer
    from moldau.server.config.schema import Processes
    from moldau.server.config.values import format_value

    resolved = load({}, settings, config_file)
    rows: list[dict[str, Any]] = []
    for name, key in KEYS.items():
        source = resolved.sources[name]
        if changed and source.layer is Layer.DEFAULT:
            continue
        value = resolved.value(name)
        exact = value if isinstance(value, bool | int) or value is None else str(value)
        if isinstance(value, Processes):
            exact = int(value) or str(value)
        shown = exact if output in ("json", "yaml") else format_value(key, value)
        rows.append({"key": name, "value": shown, "source": str(source)})
    if output in ("json", "yaml"):
        document = {row["key"]: {"value": row["value"], "source": row["source"]} for row in rows}
        emit_document(document, output, name="")
        return
    emit_rows(rows, output, name="key", if_empty="all settings have their default")
    file = config_file or os.environ.get("MOLDAU_CONFIG")
    if output == "table" and not file and not changed:
        say("no configuration file in use; write one: moldau config init")
