"""Owns `moldau group`: consumer groups, their members and their lag."""

from typing import TYPE_CHECKING, Any

import click

from moldau.cli.lazy import Command, LazyGroup
from moldau.cli.options import Properties, brokers_option, complete_groups, output_option
from moldau.cli.output import counted, emit_document, emit_rows, emit_table, say

if TYPE_CHECKING:
    from moldau.client.admin import GroupDetail


@click.group(
    "group",
    cls=LazyGroup,
    examples=(
        "moldau group list",
        "moldau group describe billing",
        "moldau group describe billing -o json",
    ),
)
def group() -> None:
    """List and describe consumer groups and their lag."""


@group.command(
    "list",
    cls=Command,
    examples=(
        "moldau group list",
        "moldau group list -o name",
        "moldau group list -o json -b broker.example:9092",
    ),
)
@output_option
@brokers_option
def list_groups(output: str, brokers: str, properties: Properties) -> None:
    """List consumer groups."""
    from moldau.client.admin import Admin

    rows = [
        {"name": info.name, "state": info.state}
        for info in Admin(brokers, dict(properties)).groups()
    ]
    emit_rows(rows, output, name="name")
    if not rows and output == "table":
        say("no groups; a consumer makes one: moldau consume TOPIC --group NAME")


@group.command(
    "describe",
    cls=Command,
    examples=(
        "moldau group describe billing",
        "moldau group describe billing -o yaml",
        "moldau group describe billing -o json | jq '[.partitions[].lag] | add'",
    ),
)
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@output_option
@brokers_option
def describe(name: str, output: str, brokers: str, properties: Properties) -> None:
    """Show a group's members, and how far it is behind in each partition."""
    from moldau.client.admin import Admin

    detail = Admin(brokers, dict(properties)).group(name)
    rows = lag_rows(detail)
    known = [row["lag"] for row in rows if row["lag"] is not None]
    document = {
        "name": detail.name,
        "state": detail.state,
        "assignor": detail.assignor or None,
        "coordinator": detail.coordinator,
        "lag": sum(known),
        "members": [
            {
                "id": member.id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [f"{topic}-{part}" for topic, part in member.partitions],
            }
            for member in detail.members
        ],
        "partitions": rows,
    }
    if emit_document(document, output, name="name"):
        return
    click.echo(
        f"{detail.name}: {detail.state}, {counted(len(detail.members), 'member')}, "
        f"lag {sum(known)}, coordinator {detail.coordinator}"
    )
    if rows:
        click.echo()
        emit_table(rows)


def lag_rows(detail: "GroupDetail") -> list[dict[str, Any]]:
    """A row per partition; None where nothing is committed or nobody could be asked."""
    return [
        {
            "topic": lag.topic,
            "partition": lag.partition,
            "committed": lag.committed_offset if lag.committed_offset >= 0 else None,
            "end": lag.end_offset if lag.end_offset >= 0 else None,
            "lag": lag.lag if lag.lag >= 0 else None,
            # Two members may well have the same client id and host.
            "member": lag.member.id if lag.member else None,
            "host": lag.member.host if lag.member else None,
        }
        for lag in detail.lags
    ]
