"""Owns the options that several kinds of pipelines have: their topics, tables and values."""

from collections.abc import Callable
from typing import Any, Final

import click

from moldau.cli.options import KeyValue, complete_topics
from moldau.cli.pipeline.run_options import mapping

Option = Callable[..., Any]


def _format_option(*formats: str) -> Option:
    return click.option(
        "--format",
        "table_format",
        type=click.Choice(formats),
        default="delta",
        show_default=True,
        help="Of the table.",
    )


TABLE_FORMAT: Final[Option] = _format_option("delta", "iceberg")
DESTINATION_FORMAT: Final[Option] = _format_option("delta", "iceberg", "parquet")
"""Plain Parquet files can be written, but nobody knows which of them belong together."""

STORAGE: Final[Option] = click.option(
    "--storage",
    type=KeyValue(),
    multiple=True,
    callback=mapping,
    metavar="KEY=VALUE",
    help="How the place is reached, in the words of deltalake (AWS_ENDPOINT_URL=…) or, for "
    "Iceberg, of pyiceberg (s3.endpoint=…, type=rest, uri=…, token=…); may be repeated.",
)

FRAMING: Final[Option] = click.option(
    "--framing",
    type=click.Choice(["none", "confluent", "single-object"]),
    default="none",
    show_default=True,
    help="What stands before each value.",
)

REGISTRY: Final[Option] = click.option(
    "--registry",
    metavar="URL|FOLDER",
    help="Where the schemas are that values with --framing confluent were written with: a schema "
    "registry, or a folder with a file for each id (17.avsc).",
)

REGISTRY_OPTIONS: Final[Option] = click.option(
    "--registry-option",
    "registry_options",
    type=KeyValue(),
    multiple=True,
    callback=mapping,
    metavar="KEY=VALUE",
    help="For the registry's client, such as basic.auth.user.info=NAME:PASSWORD; may be repeated.",
)


def once_each(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value))


def topics_option(help_text: str, *, required: bool = True) -> Option:
    """--topic, as often as there are topics."""
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        callback=once_each,
        required=required,
        metavar="NAME",
        shell_complete=complete_topics,
        help=help_text,
    )
