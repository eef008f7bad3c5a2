"""The command line of the pipeline `audit`, and its report."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.options import Integer, Number, complete_groups, complete_topics
from moldau.cli.output import color_wanted, emit_table, say
from moldau.cli.pipeline.kind_options import (
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    STORAGE,
    TABLE_FORMAT,
    Option,
    choice,
    many,
    text,
    topics_option,
)

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import Outcome

SUMMARY: Final = "Check that a table or topic has every record of topics exactly once."

EXAMPLES: Final = (
    "moldau pipeline run audit --topic orders --table /lake/orders",
    "moldau pipeline run audit --topic orders --table /lake --through group --group archive-orders",
    "moldau pipeline run audit --topic orders --against-topic orders-copy --match key -o json",
)

CONTINUOUS: Final = False
NEEDS_BROKERS: Final = True

_RANGES_SHOWN: Final = 5
_KINDS: Final = ("missing", "duplicated", "extra", "altered", "dead", "expired")

OPTIONS: Final[tuple[Option, ...]] = (
    topics_option("Topic whose records must be there."),
    text("--table", "LOCATION", "The table to check: a folder, or s3://bucket/prefix."),
    TABLE_FORMAT,
    STORAGE,
    text(
        "--against-topic",
        "NAME",
        "Instead of a table: a topic with a copy of each record.",
        shell_complete=complete_topics,
    ),
    many(
        "--match",
        "match",
        "TERM",
        "What identifies a record in two topics: key, value, header:NAME, field:NAME of JSON, "
        "sql:EXPRESSION. [default: key and value]",
    ),
    many("--match-against", "match_against", "TERM", "The same for --against-topic, if different."),
    click.option(
        "--ignore",
        "ignored",
        multiple=True,
        type=click.Choice(["key", "value", "timestamp", "timestampType", "headers"]),
        help="Do not compare this column, as the value of a table written without --keep-raw. "
        "May be repeated.",
    ),
    many(
        "--group",
        "groups",
        "NAME",
        "Show the lag of this consumer group; see also --through.",
        shell_complete=complete_groups,
    ),
    choice(
        "--through",
        ("now", "group"),
        "Check up to the end of the topics, or to the committed offsets of the first group.",
    ),
    text(
        "--dead-letters",
        "TOPIC",
        "Records in this dead-letter topic are not missing.",
        shell_complete=complete_topics,
    ),
    text("--lag-max", "N", "Fail if a group has more lag in a partition.", type=Integer(0)),
    click.option(
        "--decode",
        "value_format",
        type=click.Choice(["json", "avro", "protobuf"]),
        help="Count values that cannot be decoded with --schema.",
    ),
    text("--schema", "FILE", "For --decode: a file, or the schema.", "value_schema"),
    text("--message", "NAME", "Message type of a Protobuf schema.", "value_message"),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    text(
        "--undecodable-max",
        "SHARE",
        "Accepted share of undecodable values.",
        type=Number(0, 1),
        default=0.0,
    ),
)


# -- the report


def show(outcome: "Outcome") -> None:
    """A table of partitions, then the differences, and one line at the end."""
    details = outcome.details
    if not details:
        click.echo(outcome.summary)
        return
    emit_table([_row(partition) for partition in details["partitions"]])
    _show_ranges(details["partitions"])
    if details["groups"]:
        click.echo()
        emit_table(details["groups"])
    for line in _remarks(details):
        click.echo(line)
    for note in details["notes"]:
        say(f"note: {note}")
    click.echo()
    word = "complete" if outcome.ok else "NOT COMPLETE"
    color = "green" if outcome.ok else "red"
    click.echo(f"{click.style(word, fg=color, bold=True)}: {outcome.summary}", color=color_wanted())


def _row(partition: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: partition[name] for name in ("topic", "partition", "start", "end")}
    row["records"] = partition["source_rows"]
    row["found"] = partition["target_rows"]
    row.update({kind: partition[kind] for kind in _KINDS})
    row["same"] = partition["ok"]
    return row


def _show_ranges(partitions: Sequence[Mapping[str, Any]]) -> None:
    lines = []
    for partition in partitions:
        for kind, ranges in partition["ranges"].items():
            named = ", ".join(
                f"{first}" if first == last else f"{first}-{last}"
                for first, last, _ in ranges[:_RANGES_SHOWN]
            )
            more = ", …" if len(ranges) > _RANGES_SHOWN else ""
            where = f"{partition['topic']}-{partition['partition']}"
            lines.append(f"{kind:<10} {where}: offsets {named}{more}")
    if lines:
        click.echo()
        click.echo("\n".join(lines))


def _remarks(details: Mapping[str, Any]) -> list[str]:
    lines = []
    undecodable = details["undecodable"]
    if undecodable is not None:
        lines.append(
            f"{undecodable['undecodable']:,} of {undecodable['values']:,} values "
            f"({undecodable['share']:.2%}) cannot be decoded as {undecodable['format']}"
            + (f": {undecodable['example']}" if undecodable["example"] else "")
        )
    return ["", *lines] if lines else []
