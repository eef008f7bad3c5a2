"""Owns the options that several kinds of pipelines have: their topics, tables and values."""

from collections.abc import Callable
from typing import Any, Final

import click

from moldau.cli.options import KeyValue, complete_topics

Option = Callable[..., Any]

TABLE_FORMAT: Final[Option] = click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Of the table.",
)

STORAGE: Final[Option] = click.option(
    "--storage",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="How S3 is reached (endpoint, access_key, secret_key, session_token, region), "
    "or Iceberg's catalog; may be repeated.",
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
    metavar="KEY=VALUE",
    help="For the registry's client, such as basic.auth.user.info=NAME:PASSWORD; may be repeated.",
)


def topics_option(help_text: str, *, required: bool = True) -> Option:
    """--topic, as often as there are topics."""
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        required=required,
        metavar="NAME",
        shell_complete=complete_topics,
        help=help_text,
    )
