"""What all kinds of pipelines have in common on the command line."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.connection.current import current_properties, security_in
from moldau.cli.options import (
    DEFAULT_BROKERS,
    Duration,
    pairs_option,
    plain_brokers_option,
)
from moldau.cli.pipeline.kind_options import mapping, shared_option
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.errors import NotFoundError

HOME_VARIABLE: Final = "MOLDAU_PIPELINES_HOME"
NAME_CHARACTERS_MAX: Final = 100
_COMPLETE_SECONDS_MAX: Final = 1.0


def default_home() -> str:
    """The default of $MOLDAU_PIPELINES_HOME, in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return str(Path(state).expanduser() / "moldau" / "pipelines")


def default_name(kind: str, words: Iterable[str]) -> str:
    """A stable name: the same command continues the same pipeline."""
    text = "-".join((kind, *words))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if name != text or len(name) > NAME_CHARACTERS_MAX:
        # Different words must not give the same name.
        mark = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: NAME_CHARACTERS_MAX - 9].strip('-.')}-{mark}"
    return name


home_option: Final = click.option(
    "--home",
    envvar=HOME_VARIABLE,
    default=default_home,
    is_eager=True,
    metavar="LOCATION",
    help="Where pipelines keep their checkpoints and state: a folder, or "
    f"s3://, gs://, abfss:// or hdfs://HOST/PATH; also {HOME_VARIABLE}. "
    "[default: ~/.local/state/moldau/pipelines]",
)
name_option: Final = click.option(
    "--name",
    metavar="NAME",
    help="Name of the pipeline and its consumer group. [default: from its kind and topics]",
)
trigger_option: Final = click.option(
    "--trigger",
    "trigger_seconds",
    type=Duration(),
    metavar="TIME",
    help="Run until stopped, with a batch every TIME, as 5s. [default: end at the offsets "
    "that are the latest at the start]",
)
conf_options: Final = (
    pairs_option(
        "--conf",
        help_text="A Spark setting, as spark.executor.memory=4g; overrides --conf-file",
        callback=mapping,
    ),
    click.option(
        "--conf-file",
        "conf_files",
        type=click.Path(exists=True, dir_okay=False),
        multiple=True,
        metavar="FILE",
        help="Spark settings, as in spark-defaults.conf; may be repeated.",
    ),
)
"""`spark_conf` merges them."""
running_options: Final = (
    name_option,
    shared_option("master"),
    *conf_options,
    shared_option("options"),
    home_option,
    plain_brokers_option,
)
"""Of all kinds."""


def source_connection() -> dict[str, str]:
    """The connection of the command as options of the Spark source."""
    return {f"kafka.{name}": value for name, value in current_properties().items()}


def spark_conf(values: dict[str, Any]) -> dict[str, str]:
    """Remove the Spark settings from `values` and merge them; the last value of a key counts."""
    from moldau.spark.pipelines.settings_file import read_conf

    found: dict[str, str] = {}
    for path in values.pop("conf_files"):
        found |= read_conf(Path(path))
    return {**found, **values.pop("conf")}


def unknown_pipeline(name: str, more: str = "") -> "NotFoundError":
    from moldau.client.errors import NotFoundError

    return NotFoundError(
        f"pipeline {name} does not exist{more}",
        hint="list pipelines: moldau pipeline list · use other brokers: -b HOST:PORT",
    )


def complete_pipelines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names for shell completion; empty if no broker responds."""
    from click.shell_completion import CompletionItem

    from moldau.client.kafka.connect import probe
    from moldau.spark.pipelines.status import StatusTopic

    brokers = str(ctx.params.get("brokers") or DEFAULT_BROKERS)
    try:
        security = security_in(ctx, ask=False)
        probe(brokers, _COMPLETE_SECONDS_MAX / 2, is_kafka=security.tls is None)
        with StatusTopic(brokers, seconds_max=_COMPLETE_SECONDS_MAX, security=security) as board:
            names = sorted(board.read())
    except MoldauError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
