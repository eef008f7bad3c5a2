"""Owns `moldau config`: a file to start from, and what is in force and why."""

import os
from typing import Any

import click

from moldau.cli.broker import load
from moldau.cli.click_groups import Command, LazyGroup
from moldau.cli.errors import CommandError
from moldau.cli.options import KeyValue, output_option
from moldau.cli.output import emit_json, emit_rows, emit_yaml, say

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
    """Write a configuration file; show what is in force."""


@config.command(
    "init",
    cls=Command,
    examples=(
        "moldau config init",
        "moldau config init /etc/moldau/broker.yaml --set broker_id=2",
        "moldau config init - | less",
    ),
)
@click.argument("file", default="broker.yaml", type=click.Path(dir_okay=False))
@click.option(
    "--set",
    "settings",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a value in the new file; may be repeated.",
)
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
def init(file: str, settings: Settings, force: bool) -> None:
    """Write a YAML file with every setting, its meaning and its default (- for stdout)."""
    from moldau.server.config import load_config
    from moldau.server.config.keys import ALIASES
    from moldau.server.config.render import render_file

    names = {key: f"--set {key}" for key, _ in settings}
    resolved = load_config(dict(settings), {}, option_names=names)
    keys = [ALIASES[key].target if key in ALIASES else key for key, _ in settings]
    text = render_file({key: resolved.value(key) for key in keys})
    if file == "-":
        click.echo(text, nl=False)
        return
    if not file.endswith((".yaml", ".yml")):
        raise CommandError(f"{file} must end in .yaml: that is what is written")
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise CommandError(f"{file} exists already", hint="replace it: add --force") from None
    say(f"wrote {file}; start a broker with it: moldau broker start --bootstrap --config {file}")


@config.command(
    "show",
    cls=Command,
    examples=(
        "moldau config show",
        "moldau config show --config broker.yaml --changed",
        "moldau config show -o json",
    ),
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file to read; also MOLDAU_CONFIG.",
)
@click.option(
    "--set",
    "settings",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="As a flag of the broker would; may be repeated.",
)
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@output_option
def show(config_file: str | None, settings: Settings, changed: bool, output: str) -> None:
    """Print every setting with its value and where it comes from."""
    from moldau.server.config.keys import KEYS
    from moldau.server.config.load import Layer
    from moldau.server.config.values import format_value

    resolved = load({}, settings, config_file)
    rows: list[dict[str, Any]] = []
    for name, key in KEYS.items():
        source = resolved.sources[name]
        if changed and source.layer is Layer.DEFAULT:
            continue
        value = resolved.value(name)
        exact = value if isinstance(value, bool | int) or value is None else str(value)
        shown = exact if output in ("json", "yaml") else format_value(key, value)
        rows.append({"key": name, "value": shown, "source": str(source)})
    if output in ("json", "yaml"):
        document = {row["key"]: {"value": row["value"], "source": row["source"]} for row in rows}
        (emit_json if output == "json" else emit_yaml)(document)
        return
    emit_rows(rows, output, name="key")
    if output == "table" and not rows:
        say("everything is at its default")
    file = config_file or os.environ.get("MOLDAU_CONFIG")
    if output == "table" and not file and not changed:
        say("no file was read; write one: moldau config init")
