"""Owns what all kinds of pipelines have in common on the command line.

A kind's own module (`moldau.cli.pipeline.<kind>`) has

    SUMMARY: str                                     # one sentence
    EXAMPLES: tuple[str, ...]                        # three lines: moldau pipeline run <kind> …
    OPTIONS: tuple[Callable, ...]                    # click's decorators, in the order shown;
                                                     # their values are named as its settings
    def complete(values: dict) -> None               # if they are not yet what settings are
    CONTINUOUS = False                               # if it always ends by itself; else left out
    NEEDS_BROKERS = True                             # if it can do nothing without; else left out
    def show(outcome: Outcome) -> None               # if `run` shows more than the summary

and imports nothing heavy. `run` and `plan` are made of it.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from moldau.cli.options import DEFAULT_BROKERS, Duration, KeyValue, plain_brokers_option

if TYPE_CHECKING:
    from moldau.client.errors import NotFoundError

HOME_VARIABLE: Final = "MOLDAU_PIPELINES_HOME"
MASTER_DEFAULT: Final = "local[*]"
NAME_CHARACTERS_MAX: Final = 100
_COMPLETE_SECONDS_MAX: Final = 1.0

_F = TypeVar("_F", bound=Callable[..., Any])


def default_home() -> str:
    """The folder of all pipelines: $MOLDAU_PIPELINES_HOME, or among the user's state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return str(Path(state).expanduser() / "moldau" / "pipelines")


def default_name(kind: str, words: Iterable[str]) -> str:
    """The same for the same words: who starts a pipeline again goes on with it."""
    text = "-".join((kind, *words))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if name != text or len(name) > NAME_CHARACTERS_MAX:
        # Two that look alike once they are written as a name must not be the same pipeline.
        mark = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: NAME_CHARACTERS_MAX - 9].strip('-.')}-{mark}"
    return name


def mapping(ctx: click.Context, param: click.Parameter, value: Iterable[Any]) -> dict[str, str]:
    """For options KEY=VALUE that may be repeated: of the same one, the last counts."""
    return dict(value)


def home_option(function: _F) -> _F:
    """--home."""
    return click.option(
        "--home",
        envvar=HOME_VARIABLE,
        default=default_home,
        is_eager=True,
        metavar="PLACE",
        help="Where pipelines keep checkpoints and what else they have to remember: a folder, or "
        f"s3://, gs://, abfss:// or hdfs://HOST/PATH; also {HOME_VARIABLE}. "
        "[default: moldau/pipelines among the user's state]",
    )(function)


def name_option(function: _F) -> _F:
    """--name."""
    return click.option(
        "--name",
        metavar="NAME",
        help="Of the pipeline and of its consumer group. [default: kind and what it reads]",
    )(function)


def trigger_option(function: _F) -> _F:
    """--trigger: what makes a run a continuous one."""
    return click.option(
        "--trigger",
        "trigger_seconds",
        type=Duration(),
        metavar="TIME",
        help="Go on until it is stopped, with a batch every TIME, as 5s. [default: end with what "
        "is there]",
    )(function)


def conf_options(function: _F) -> _F:
    """--conf and --conf-file; `spark_conf` makes one mapping of both."""
    for option in (
        click.option(
            "--conf-file",
            "conf_files",
            type=click.Path(exists=True, dir_okay=False),
            multiple=True,
            metavar="FILE",
            help="Settings of Spark, as in spark-defaults.conf; may be repeated.",
        ),
        click.option(
            "--conf",
            type=KeyValue(),
            multiple=True,
            callback=mapping,
            metavar="KEY=VALUE",
            help="A setting of Spark, as spark.executor.memory=4g; goes before those of files; "
            "may be repeated.",
        ),
    ):
        function = option(function)
    return function


def spark_conf(values: dict[str, Any]) -> dict[str, str]:
    """Takes the settings of Spark out of `values`; of the same one, the last counts."""
    from moldau.spark.pipelines.settings_file import read_conf

    found: dict[str, str] = {}
    for path in values.pop("conf_files"):
        found |= read_conf(Path(path))
    return {**found, **values.pop("conf")}


def running_options(function: _F) -> _F:
    """--name, --master, --conf, -o, --home, -b: with --trigger, what all settings have."""
    for option in (
        plain_brokers_option,
        home_option,
        click.option(
            "-o",
            "--option",
            "options",
            type=KeyValue(),
            multiple=True,
            callback=mapping,
            metavar="KEY=VALUE",
            help="An option of the source, as maxOffsetsPerTrigger=100000; may be repeated.",
        ),
        conf_options,
        click.option(
            "--master",
            default=MASTER_DEFAULT,
            show_default=True,
            metavar="URL",
            help="Where Spark runs: local[N], spark://…, k8s://…, yarn.",
        ),
        name_option,
    ):
        function = option(function)
    return function


def unknown_pipeline(name: str) -> "NotFoundError":
    from moldau.client.errors import NotFoundError

    return NotFoundError(
        f"there is no pipeline {name}",
        hint="list them: moldau pipeline list · other brokers: -b HOST:PORT",
    )


def complete_pipelines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names for the tab key, of a broker that answers quickly."""
    from click.shell_completion import CompletionItem

    from moldau.client.errors import ClientError
    from moldau.client.kafka.connect import probe
    from moldau.spark.pipelines.status import StatusTopic

    brokers = str(ctx.params.get("brokers") or DEFAULT_BROKERS)
    try:
        probe(brokers, _COMPLETE_SECONDS_MAX / 2)
        with StatusTopic(brokers, seconds_max=_COMPLETE_SECONDS_MAX) as board:
            names = sorted(board.read())
    except ClientError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
