"""The command line of the pipeline `archive`."""

from typing import Final

from moldau.cli.options import Integer
from moldau.cli.pipeline.kind_options import (
    DESTINATION_FORMAT,
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    START,
    STORAGE,
    Option,
    choice,
    many,
    switch,
    text,
    topics_option,
)

SUMMARY: Final = "Write topics to a table (Delta, Iceberg or Parquet), each record exactly once."

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

OPTIONS: Final[tuple[Option, ...]] = (
    topics_option("Topic to archive."),
    text(
        "--to",
        "LOCATION",
        "The table: a folder, or s3://, gs://, abfss:// or hdfs://HOST/PATH.",
        required=True,
    ),
    DESTINATION_FORMAT,
    switch("--table-per-topic", "Write each topic to its own table below the location."),
    STORAGE,
    choice("--decode", ("raw", "json", "avro", "protobuf"), "Format of values; raw keeps bytes."),
    text("--schema", "FILE|TEXT", "Schema of values. [default for JSON: inferred]"),
    text("--message", "NAME", "Message type of a Protobuf schema."),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    switch("--keep-raw", "Also keep the bytes of each decoded value, in the column raw."),
    choice(
        "--mode",
        ("append", "upsert"),
        "append keeps every record; upsert keeps the newest of each key, and a tombstone deletes "
        "the row.",
    ),
    many("--key", "keys", "key|value.FIELD", "Key of rows for --mode upsert. [default: key]"),
    choice("--envelope", ("none", "debezium"), "debezium: the row is in the event's field after."),
    choice("--key-framing", ("none", "confluent"), "Header before each key, which is removed."),
    text("--dead-letter-topic", "NAME", "For undecodable records. [default: FIRST-TOPIC.dlq]"),
    START,
    text(
        "--max-offsets",
        "N",
        "Records per batch, which is one commit. [default: 2000000]",
        "offsets_per_trigger_max",
        type=Integer(1),
    ),
)
