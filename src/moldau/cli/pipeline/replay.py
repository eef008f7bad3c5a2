"""Responsible for the command line of the pipeline `replay`."""

from collections.abc import Callable
from typing import Any, Final

import click

from moldau.cli.pipeline.kind_options import STORAGE, TABLE_FORMAT, topics_option

SUMMARY: Final = "Send records of topics, or of a lake's table, to a topic once more, in order."

EXAMPLES: Final = (
    "moldau pipeline run replay --topic orders --to orders-again --from-time -2h --create",
    "moldau pipeline run replay --topic orders --to repair --offsets 0:100-199 --offsets 1:40-",
    "moldau pipeline run replay --table /lake/orders --to orders-again --key-file keys.txt",
)

CONTINUOUS: Final = False
NEEDS_BROKERS: Final = True

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    topics_option("Read from it; may be repeated.", required=False),
    click.option(
        "--table", metavar="LOCATION", help="Or read from this table: a folder, or s3://…"
    ),
    TABLE_FORMAT,
    STORAGE,
    click.option("--to", "target", required=True, metavar="TOPIC", help="Write to it."),
    click.option(
        "--create",
        is_flag=True,
        help="Create that topic if it is not there: partitions as the source, no retention.",
    ),
    click.option(
        "--from-time",
        metavar="TIME",
        help="First moment: 2026-11-15T14:00:00Z, milliseconds since 1970, or ago as -2h.",
    ),
    click.option("--to-time", metavar="TIME", help="First moment that is not sent any more."),
    click.option(
        "--times-rise",
        is_flag=True,
        help="Times rise with offsets: stop reading a topic at the first that is too late.",
    ),
    click.option(
        "--offsets",
        multiple=True,
        metavar="[TOPIC/]PARTITION:FIRST-LAST",
        help="Only these, both included, of only the partitions named; 0:100- has no end.",
    ),
    click.option(
        "--key", "keys", multiple=True, metavar="KEY", help="Only this key; may be repeated."
    ),
    click.option(
        "--key-file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Only the keys in this file, one per line.",
    ),
    click.option(
        "--keep-partitions/--no-keep-partitions",
        default=None,
        help="Same partition numbers in the target; else by key. "
        "[default: if the target has enough partitions]",
    ),
    click.option(
        "--origin-headers",
        is_flag=True,
        help="Add headers that say from which topic, partition and offset a record comes.",
    ),
    click.option(
        "--batch-rows",
        type=click.IntRange(min=1),
        metavar="N",
        help="So many at a time, all of them or none. [default: 500000]",
    ),
)
