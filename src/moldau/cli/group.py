"""`moldau group`: consumer groups, their members, offsets and lag."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Properties,
    brokers_option,
    complete_groups,
    complete_topics,
    open_admin,
    output_option,
    partitions_option,
    yes_option,
)
from moldau.cli.output import (
    confirm,
    counted,
    emit_document,
    emit_rows,
    emit_table,
    existing_names,
    say,
)
from moldau.cli.start_position import Position, PositionParam, resolve_offsets

if TYPE_CHECKING:
    from moldau.client.kafka.admin import Admin, GroupDetail

Part = tuple[str, int]


@click.group(
    "group",
    cls=LazyGroup,
    examples=(
        "moldau group list",
        "moldau group lag billing",
        "moldau group seek billing --to @-1h",
    ),
)
def group() -> None:
    """List, describe, seek and delete consumer groups."""


@group.command(
    "list",
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
    rows = [
        {"name": info.name, "state": info.state, "type": info.kind}
        for info in open_admin(brokers, properties).groups()
    ]
    hint = "no groups; create one: moldau consume TOPIC --group NAME"
    emit_rows(rows, output, name="name", if_empty=hint)


@group.command(
    "describe",
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
    """Show a group's members, and its lag by partition."""
    detail = open_admin(brokers, properties).group(name)
    rows = lag_rows(detail)
    known = [row["lag"] for row in rows if row["lag"] is not None]
    document = {
        "name": detail.name,
        "state": detail.state,
        "type": detail.kind,
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
    """A row per partition; None where nothing is committed or no leader responded."""
    return [
        {
            "topic": lag.topic,
            "partition": lag.partition,
            "committed": lag.committed_offset if lag.committed_offset >= 0 else None,
            "end": lag.end_offset if lag.end_offset >= 0 else None,
            "lag": lag.lag if lag.lag >= 0 else None,
            # Client id and host need not be unique.
            "member": lag.member.id if lag.member else None,
            "host": lag.member.host if lag.member else None,
        }
        for lag in detail.lags
    ]


@group.command(
    "lag",
    examples=(
        "moldau group lag billing",
        "moldau group lag billing -o json | jq 'map(.lag) | add'",
        "moldau group lag billing -b broker.example:9092",
    ),
)
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@output_option
@brokers_option
def lag(name: str, output: str, brokers: str, properties: Properties) -> None:
    """Show how many messages a group has not consumed yet, by partition."""
    rows = [
        {key: row[key] for key in ("topic", "partition", "committed", "end", "lag")}
        for row in lag_rows(open_admin(brokers, properties).group(name))
    ]
    emit_rows(rows, output, name="topic")
    if output == "table":
        say(f"{name}: lag {sum(row['lag'] or 0 for row in rows)}")


@group.command(
    "seek",
    examples=(
        "moldau group seek billing --to beginning --dry-run",
        "moldau group seek billing --to @-1h --topic orders",
        "moldau group seek billing --to 4711 --topic orders -p 0 -y",
    ),
)
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--to",
    "position",
    type=PositionParam(),
    required=True,
    metavar="POSITION",
    help="beginning, end, an offset N, the last N (-N), a time @2026-01-31T12:00 or @-10m.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; may be repeated.  [default: all partitions with a committed offset]",
)
@partitions_option
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@output_option
@brokers_option
def seek(
    name: str,
    position: Position,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    brokers: str,
    properties: Properties,
) -> None:
    """Change the committed offsets of a group without members. Shows the change first."""
    from moldau.client.errors import NotFoundError

    admin = open_admin(brokers, properties)
    try:
        detail = admin.group(name)
    except NotFoundError:
        if not topics:
            raise
        # Offsets of a new group may be set before its first member joins.
        committed: dict[Part, int] = {}
    else:
        if detail.members:
            raise CommandError(
                f"group {name} has {counted(len(detail.members), 'member')}; offsets can only be "
                "changed while it has none",
                hint="stop its consumers first",
            )
        committed = {(one.topic, one.partition): one.committed_offset for one in detail.lags}
    parts = _parts(admin, committed, topics, partitions)
    wanted = resolve_offsets(admin, position, parts)
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "committed": committed.get((topic, partition)),
            "new": offset,
            "change": offset - committed[topic, partition]
            if committed.get((topic, partition), -1) >= 0
            else None,
        }
        for (topic, partition), offset in sorted(wanted.items())
    ]
    emit_rows(rows, output, name="topic")
    changed = {part: new for part, new in wanted.items() if committed.get(part) != new}
    if not changed:
        say("nothing to change")
    elif dry_run:
        say(f"{counted(len(changed), 'offset')} would change; nothing was changed")
    else:
        confirm(f"Change {counted(len(changed), 'offset')} of group {name}?", yes=yes)
        admin.commit_group(name, changed)
        say(f"changed {counted(len(changed), 'offset')} of group {name}")


def _parts(
    admin: "Admin", committed: Mapping[Part, int], topics: Sequence[str], numbers: Sequence[int]
) -> list[Part]:
    """The partitions to change: all of the named topics, else those with a committed offset."""
    if topics:
        found = [
            (topic, part.partition) for topic in topics for part in admin.topic(topic).partitions
        ]
    else:
        found = list(committed)
    chosen = [part for part in found if not numbers or part[1] in numbers]
    if not chosen:
        raise CommandError(
            f"the group has no committed offset {'in these partitions' if numbers else 'yet'}"
            if not topics
            else f"no such partition in {', '.join(topics)}",
            hint="choose a topic: --topic TOPIC · a queue group has none: see moldau queue list",
            code=ExitCode.NOT_FOUND,
        )
    return chosen


@group.command(
    "delete",
    examples=(
        "moldau group delete billing",
        "moldau group delete billing reports -y",
        "moldau group delete billing --if-exists -y",
    ),
)
@click.argument(
    "names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)
@click.option("--if-exists", is_flag=True, help="Succeed if the group does not exist.")
@yes_option
@brokers_option
def delete(
    names: tuple[str, ...], if_exists: bool, yes: bool, brokers: str, properties: Properties
) -> None:
    """Delete groups without members, and their committed offsets."""
    admin = open_admin(brokers, properties)
    existing = {info.name for info in admin.groups()}
    present = existing_names("group", names, existing, if_exists=if_exists)
    if not present:
        return
    confirm(f"Delete {', '.join(present)} with all committed offsets?", yes=yes)
    for name in present:
        admin.delete_group(name)
        say(f"deleted group {name}")
