"""The command line of the pipeline `aggregate`."""

from pathlib import Path
from typing import Any, Final

import click

from moldau.cli.pipeline.kind_options import (
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    START,
    STORAGE,
    TABLE_FORMAT,
    Option,
    choice,
    text,
    topics_option,
)
from moldau.cli.pipeline.run_options import Interval

SUMMARY: Final = "Run SQL with windows over topics, and write the results to a topic or table."

EXAMPLES: Final = (
    "moldau pipeline run aggregate --topic clicks --schema 'page string, at timestamp' "
    "--event-time at --sql \"SELECT window(at, '1 minute') AS w, page, count(*) AS n "
    'FROM events GROUP BY 1, 2" --to clicks-per-minute --key page',
    "moldau pipeline run aggregate --topic orders --schema orders.avsc --decode avro "
    "--sql-file revenue.sql --event-time created --watermark 1h --to-table /lake/revenue",
    "moldau pipeline run aggregate --topic clicks --sql-file totals.sql --mode update --to totals",
)

NEEDS_BROKERS: Final = True

OPTIONS: Final[tuple[Option, ...]] = (
    topics_option("Topic to read."),
    text("--sql", "TEXT", "The query, which reads from the view --view."),
    text(
        "--sql-file",
        "FILE",
        "A file with the query.",
        type=click.Path(dir_okay=False, exists=True),
    ),
    text("--view", "NAME", "Name of the view in the query.", default="events"),
    choice("--decode", ("json", "avro", "protobuf", "raw"), "Format of values."),
    text(
        "--schema",
        "SCHEMA",
        "Schema of values: DDL as 'id bigint, at timestamp', or a file (JSON Schema, .avsc, "
        "descriptor set). [default for JSON: inferred]",
    ),
    text("--message", "NAME", "Message type of a Protobuf schema: package.Message."),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    text("--event-time", "COLUMN", "Timestamp column or SQL expression.", default="_timestamp"),
    text(
        "--watermark",
        "TIME",
        "How late rows may be, as 10m or '10 minutes'.",
        type=Interval(),
        default="10 minutes",
    ),
    choice(
        "--mode",
        ("append", "update"),
        "append writes each result once, when its window has closed; update whenever it changes.",
    ),
    START,
    text("--to", "TOPIC", "Write results to this topic, as JSON.", "to_topic"),
    text("--key", "EXPRESSION", "Key of these messages: SQL over columns of the result."),
    text("--to-table", "LOCATION", "Or write results to this table: a folder, or s3://…"),
    TABLE_FORMAT,
    STORAGE,
    text("--late-topic", "TOPIC", "For rows that are too late. [default: FIRST-TOPIC.late]"),
    text("--dead-letter-topic", "TOPIC", "For invalid rows. [default: FIRST-TOPIC.dlq]"),
)


def complete(values: dict[str, Any]) -> None:
    """Read the query from its file."""
    from moldau.client.errors import InvalidArgumentError

    file = values.pop("sql_file")
    if (values["sql"] is None) == (file is None):
        raise InvalidArgumentError("give the query with either --sql or --sql-file")
    if file is not None:
        try:
            values["sql"] = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"cannot read --sql-file {file}: {error}") from None
