"""Owns the command line of the pipeline `archive`."""

from collections.abc import Callable
from typing import Any, Final

import click

from moldau.cli.pipeline.kind_options import (
    DESTINATION_FORMAT,
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    STORAGE,
    topics_option,
)

SUMMARY: Final = "Keep topics in a lake: Delta, Iceberg or Parquet, each record exactly once."

EXAMPLES: Final = (
    "moldau pipeline run archive --topic orders --to /lake/orders",
    "moldau pipeline run archive --topic orders --to s3://lake/orders "
    "--storage AWS_REGION=eu-central-1",
    "moldau pipeline run archive --topic clicks --topic views --table-per-topic --to /lake "
    "--decode json",
    "moldau pipeline run archive --topic shop.public.customers --to /lake/customers "
    "--mode upsert --decode json --envelope debezium",
)

NEEDS_BROKERS: Final = True

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    topics_option("What is kept; may be repeated."),
    click.option(
        "--to",
        required=True,
        metavar="LOCATION",
        help="The table: a folder, or s3://, gs://, abfss:// or hdfs://HOST/PATH.",
    ),
    DESTINATION_FORMAT,
    click.option(
        "--table-per-topic", is_flag=True, help="A table for each topic, below the location."
    ),
    STORAGE,
    click.option(
        "--decode",
        type=click.Choice(["raw", "json", "avro", "protobuf"]),
        default="raw",
        show_default=True,
        help="What values are; raw keeps their bytes.",
    ),
    click.option(
        "--schema",
        metavar="FILE|TEXT",
        help="Of the values. [default for JSON: inferred from the first records]",
    ),
    click.option("--message", metavar="NAME", help="Which message of a Protobuf schema they are."),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    click.option(
        "--keep-raw", is_flag=True, help="Keep the bytes of each decoded value, too: column raw."
    ),
    click.option(
        "--mode",
        type=click.Choice(["append", "upsert"]),
        default="append",
        show_default=True,
        help="append keeps every record; upsert keeps the newest of each key, and a record "
        "without a value deletes it.",
    ),
    click.option(
        "--key",
        "keys",
        multiple=True,
        metavar="key|value.FIELD",
        help="What tells rows apart for --mode upsert; may be repeated. [default: key]",
    ),
    click.option(
        "--envelope",
        type=click.Choice(["none", "debezium"]),
        default="none",
        show_default=True,
        help="Values are Debezium's events: the row is in their field after.",
    ),
    click.option(
        "--key-framing",
        type=click.Choice(["none", "confluent"]),
        default="none",
        show_default=True,
        help="What stands before each key, and does not count.",
    ),
    click.option(
        "--dead-letter-topic",
        metavar="NAME",
        help="For rows that cannot be decoded. [default: first topic and .dlq]",
    ),
    click.option(
        "--from",
        "start",
        default="earliest",
        show_default=True,
        metavar="earliest|latest|JSON",
        help="Where to begin, the first time.",
    ),
    click.option(
        "--max-offsets",
        "offsets_per_trigger_max",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most records of a batch, which is one commit. [default: 2000000]",
    ),
)
