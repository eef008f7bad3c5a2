"""Responsible for the command line of the pipeline `audit`, and how its report looks."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.options import complete_groups, complete_topics
from moldau.cli.output import color_wanted, emit_table, say
from moldau.cli.pipeline.kind_options import (
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    STORAGE,
    TABLE_FORMAT,
    topics_option,
)

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import Outcome

SUMMARY: Final = (
    "Prove that a lake's table, or another topic, holds every record of topics exactly once."
)

EXAMPLES: Final = (
    "moldau pipeline run audit --topic orders --table /lake/orders",
    "moldau pipeline run audit --topic orders --table /lake --through group --group archive-orders",
    "moldau pipeline run audit --topic orders --against-topic orders-copy --match key --json",
)

CONTINUOUS: Final = False
NEEDS_BROKERS: Final = True

_RANGES_SHOWN: Final = 5
_KINDS: Final = ("missing", "duplicated", "extra", "altered", "dead", "expired")

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    topics_option("What has to be there; may be repeated."),
    click.option("--table", metavar="LOCATION", help="Where: a folder, or s3://bucket/prefix."),
    TABLE_FORMAT,
    STORAGE,
    click.option(
        "--against-topic",
        metavar="NAME",
        shell_complete=complete_topics,
        help="Instead of a table: a topic with a copy of each record.",
    ),
    click.option(
        "--match",
        multiple=True,
        metavar="TERM",
        help="By what records of two topics are the same: key, value, header:NAME, field:NAME of "
        "JSON, sql:EXPRESSION; may be repeated. [default: key and value]",
    ),
    click.option(
        "--match-against",
        multiple=True,
        metavar="TERM",
        help="The same for --against-topic, where it differs.",
    ),
    click.option(
        "--ignore",
        "ignored",
        multiple=True,
        type=click.Choice(["key", "value", "timestamp", "timestampType", "headers"]),
        help="Do not compare this column, such as the value of a table that was decoded without "
        "--keep-raw; may be repeated.",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_groups,
        help="Show its lag; the first may set the cut. May be repeated.",
    ),
    click.option(
        "--through",
        type=click.Choice(["now", "group"]),
        default="now",
        show_default=True,
        help="Up to where all must be there: the end of the topics now, or what the first group "
        "has committed.",
    ),
    click.option(
        "--dead-letters",
        metavar="TOPIC",
        shell_complete=complete_topics,
        help="Records that went there are not missing.",
    ),
    click.option(
        "--lag-max",
        type=click.IntRange(min=0),
        metavar="N",
        help="Fail if a group is further behind in a partition.",
    ),
    click.option(
        "--decode",
        "value_format",
        type=click.Choice(["json", "avro", "protobuf"]),
        help="Count the values that cannot be decoded by --schema.",
    ),
    click.option(
        "--schema", "value_schema", metavar="FILE", help="For --decode: a file, or the schema."
    ),
    click.option("--message", "value_message", metavar="NAME", help="Of a Protobuf schema."),
    FRAMING,
    REGISTRY,
    REGISTRY_OPTIONS,
    click.option(
        "--undecodable-max",
        type=click.FloatRange(0, 1),
        default=0.0,
        metavar="SHARE",
        help="The share of such values that may be. [default: 0]",
    ),
)


# -- the report


def show(outcome: "Outcome") -> None:
    """A table of partitions, whatever was found, and one line in the end."""
    told = outcome.details
    if not told:
        click.echo(outcome.summary)
        return
    emit_table([_row(partition) for partition in told["partitions"]])
    _show_ranges(told["partitions"])
    if told["groups"]:
        click.echo()
        emit_table(told["groups"])
    for line in _remarks(told):
        click.echo(line)
    for note in told["notes"]:
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


def _remarks(told: Mapping[str, Any]) -> list[str]:
    lines = []
    undecodable = told["undecodable"]
    if undecodable is not None:
        lines.append(
            f"{undecodable['undecodable']:,} of {undecodable['values']:,} values "
            f"({undecodable['share']:.2%}) cannot be decoded as {undecodable['format']}"
            + (f": {undecodable['example']}" if undecodable["example"] else "")
        )
    return ["", *lines] if lines else []
