"""Owns the command line of the pipeline `aggregate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from moldau.cli.pipeline.kind_options import (
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    STORAGE,
    TABLE_FORMAT,
    topics_option,
)

SUMMARY: Final = "Run SQL with windows over topics; results to a topic or table, late rows aside."

EXAMPLES: Final = (
    "moldau pipeline run aggregate --topic clicks --schema 'page string, at timestamp' "
    "--event-time at --sql \"SELECT window(at, '1 minute') AS w, page, count(*) AS n "
    'FROM events GROUP BY 1, 2" --to clicks-per-minute --key page',
    "moldau pipeline run aggregate --topic orders --schema orders.avsc --decode avro "
    "--sql-file revenue.sql --event-time created --watermark '1 hour' --to-table /lake/revenue",
    "moldau pipeline run aggregate --topic clicks --sql-file totals.sql --mode update --to totals",
)

NEEDS_BROKERS: Final = True

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    topics_option("Read from it; may be repeated."),
    click.option("--sql", metavar="TEXT", help="The query, over the view of --view."),
    click.option(
        "--sql-file",
        type=click.Path(dir_okay=False, exists=True),
        metavar="FILE",
        help="Or the file that it is in.",
    ),
    click.option(
        "--view", default="events", show_default=True, metavar="NAME", help="What the SQL reads."
    ),
    click.option(
        "--decode",
        type=click.Choice(["json", "avro", "protobuf", "raw"]),
        default="json",
        show_default=True,
        help="What values are.",
    ),
    click.option(
        "--schema",
        metavar="SCHEMA",
        help="Of values: DDL as 'id bigint, at timestamp', or a file (JSON Schema, .avsc, "
        "descriptor set). [default: JSON is inferred from a sample]",
    ),
    click.option("--message", metavar="NAME", help="Of Protobuf: package.Message."),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    click.option(
        "--event-time",
        default="_timestamp",
        show_default=True,
        metavar="COLUMN",
        help="When something happened: a timestamp of the view, or an expression of SQL.",
    ),
    click.option(
        "--watermark",
        default="10 minutes",
        show_default=True,
        metavar="TIME",
        help="For so long after the latest event time rows are waited for.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["append", "update"]),
        default="append",
        show_default=True,
        help="Each result once, when its window is over; or whenever it changes.",
    ),
    click.option(
        "--from",
        "start",
        default="earliest",
        show_default=True,
        metavar="earliest|latest|JSON",
        help="Where to begin, the first time.",
    ),
    click.option("--to", "to_topic", metavar="TOPIC", help="Write results there, as JSON."),
    click.option(
        "--key", metavar="EXPRESSION", help="Of the messages there, over columns of the result."
    ),
    click.option(
        "--to-table", metavar="LOCATION", help="Or write them to this table: a folder, or s3://…"
    ),
    TABLE_FORMAT,
    STORAGE,
    click.option(
        "--late-topic",
        metavar="TOPIC",
        help="For rows that come too late. [default: the first topic and .late]",
    ),
    click.option(
        "--dead-letter-topic",
        metavar="TOPIC",
        help="For rows that cannot be used. [default: the first topic and .dlq]",
    ),
)


def complete(values: dict[str, Any]) -> None:
    """The query may stand in a file."""
    from moldau.client.errors import InvalidArgumentError

    file = values.pop("sql_file")
    if (values["sql"] is None) == (file is None):
        raise InvalidArgumentError("exactly one of --sql and --sql-file has the query")
    if file is not None:
        try:
            values["sql"] = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"--sql-file {file} cannot be read: {error}") from None
