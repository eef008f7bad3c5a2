"""The command line of the pipeline `replay`."""

from typing import Final

import click

from moldau.cli.options import Integer
from moldau.cli.pipeline.kind_options import (
    STORAGE,
    TABLE_FORMAT,
    Option,
    many,
    switch,
    text,
    topics_option,
)

SUMMARY: Final = "Send records of topics or of a table to a topic again, in order."

EXAMPLES: Final = (
    "moldau pipeline run replay --topic orders --to orders-again --from-time -2h --create",
    "moldau pipeline run replay --topic orders --to repair --offsets 0:100-199 --offsets 1:40-",
    "moldau pipeline run replay --table /lake/orders --to orders-again --key-file keys.txt",
)

CONTINUOUS: Final = False
NEEDS_BROKERS: Final = True

OPTIONS: Final[tuple[Option, ...]] = (
    topics_option("Topic to read.", required=False),
    text("--table", "LOCATION", "Or read from this table: a folder, or s3://…"),
    TABLE_FORMAT,
    STORAGE,
    text("--to", "TOPIC", "Write to this topic.", "target", required=True),
    switch(
        "--create",
        "Create the target if it does not exist: partitions as the source, no retention.",
    ),
    text(
        "--from-time",
        "TIME",
        "Start of the range: 2026-11-15T14:00:00Z, milliseconds since 1970, or -2h (ago).",
    ),
    text("--to-time", "TIME", "End of the range, not included."),
    switch(
        "--times-rise",
        "Timestamps increase with offsets: stop at the first record after --to-time.",
    ),
    many(
        "--offsets",
        "offsets",
        "[TOPIC/]PARTITION:FIRST-LAST",
        "Only these offsets, both included, and only the named partitions; 0:100- has no end.",
    ),
    many("--key", "keys", "KEY", "Only records with this key."),
    text(
        "--key-file",
        "FILE",
        "Only records with a key in this file, one per line.",
        type=click.Path(dir_okay=False),
    ),
    click.option(
        "--keep-partitions/--no-keep-partitions",
        default=None,
        help="Keep partition numbers, else partition by key. "
        "[default: keep if the target has enough partitions]",
    ),
    switch("--origin-headers", "Add headers with the original topic, partition and offset."),
    text(
        "--batch-rows",
        "N",
        "Records per batch, written atomically. [default: 500000]",
        type=Integer(1),
    ),
)
