"""Options of pipeline kinds: short forms of click's, and options that several kinds have.

The name of an option's value is the name of the setting in `moldau.spark.pipelines`. That package
is not imported here: it needs pyarrow, and `--help` must be fast.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from moldau.cli.options import complete_topics, pairs_option
from moldau.cli.pipeline.run_options import mapping

Option = Callable[..., Any]


def text(flag: str, metavar: str, help_text: str, name: str | None = None, **more: Any) -> Option:
    """An option with a value, for the setting `name`, or of the same name as the flag."""
    if "default" in more:
        more["show_default"] = True
    return click.option(flag, *filter(None, [name]), metavar=metavar, help=help_text, **more)


def choice(flag: str, choices: Sequence[str], help_text: str, name: str | None = None) -> Option:
    """An option whose default is the first choice."""
    return click.option(
        flag,
        *filter(None, [name]),
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help=help_text,
    )


def switch(flag: str, help_text: str) -> Option:
    return click.option(flag, is_flag=True, help=help_text)


def many(flag: str, name: str, metavar: str, help_text: str, **more: Any) -> Option:
    """An option that may be repeated."""
    return text(flag, metavar, f"{help_text} May be repeated.", name, multiple=True, **more)


def pairs(flag: str, name: str, help_text: str) -> Option:
    """KEY=VALUE, which may be repeated; the last value of a key counts."""
    return pairs_option(flag, name, help_text=help_text.rstrip("."), callback=mapping)


def once_each(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """The values without duplicates."""
    return tuple(dict.fromkeys(value))


def topics_option(help_text: str, *, required: bool = True) -> Option:
    """--topic, which may be repeated."""
    return many(
        "--topic",
        "topics",
        "NAME",
        help_text,
        callback=once_each,
        required=required,
        shell_complete=complete_topics,
    )


TABLE_FORMAT: Final = choice(
    "--format", ("delta", "iceberg"), "Format of the table.", "table_format"
)
DESTINATION_FORMAT: Final = choice(
    "--format", ("delta", "iceberg", "parquet"), "Format of the table.", "table_format"
)
STORAGE: Final = pairs(
    "--storage",
    "storage",
    "Storage option, as deltalake names it (AWS_ENDPOINT_URL=…) or, for Iceberg, pyiceberg "
    "(s3.endpoint=…, type=rest, uri=…, token=…).",
)
FRAMING: Final = choice(
    "--framing", ("none", "confluent", "single-object"), "Header before each encoded value."
)
REGISTRY: Final = text(
    "--registry",
    "URL|FOLDER",
    "Schemas of values with --framing confluent: a schema registry, or a folder with a file for "
    "each id (17.avsc).",
)
REGISTRY_OPTIONS: Final = pairs(
    "--registry-option",
    "registry_options",
    "Option of the registry's client, as basic.auth.user.info=NAME:PASSWORD.",
)
START: Final = text(
    "--from", "earliest|latest|JSON", "Where the first run starts.", "start", default="earliest"
)
