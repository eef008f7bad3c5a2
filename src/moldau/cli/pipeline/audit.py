"""Shows the report of the pipeline `audit`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.output import color_wanted, emit_table, say

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import Outcome

_RANGES_SHOWN: Final = 5
_KINDS: Final = ("missing", "duplicated", "extra", "altered", "dead", "expired")


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
