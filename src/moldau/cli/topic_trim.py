"""`moldau topic trim`: delete the oldest messages of a topic, after showing which."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Properties,
    brokers_option,
    document_output_option,
    open_admin,
    partitions_option,
    topic_argument,
    yes_option,
)
from moldau.cli.output import confirm, counted, emit_document, emit_table, say
from moldau.cli.start_position import Position, PositionParam, resolve_offsets
from moldau.client.errors import RejectedError
from moldau.model.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.client.kafka.admin import Admin

Part = tuple[str, int]

_GROUPS_MAX = 100
"""Groups whose offsets are looked at for the preview."""


@command(
    "trim",
    examples=(
        "moldau topic trim orders --to @-7d --dry-run",
        "moldau topic trim orders --to end -y          # all messages, not the topic",
        "moldau topic trim orders --partition 2 --to 4711",
    ),
)
@topic_argument
@click.option(
    "--to",
    "position",
    type=PositionParam(),
    required=True,
    metavar="POSITION",
    help="The first message to keep: an offset N, end, the last N (-N), or a time "
    "@2026-01-31T12:00 or @-7d.",
)
@partitions_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@yes_option
@document_output_option
@brokers_option
def trim(
    topic: str,
    position: Position,
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    brokers: str,
    properties: Properties,
) -> None:
    """Delete the oldest messages of a topic: those before a position.

    Shows first how many messages of each partition go, and which groups have not read them.
    """
    admin = open_admin(brokers, properties)
    parts = _parts(admin, topic, partitions)
    ranges = admin.offset_range(parts)
    new = resolve_offsets(admin, position, parts)
    rows: list[dict[str, Any]] = [
        {
            "partition": part[1],
            "start": ranges[part][0],
            "end": ranges[part][1],
            "new_start": max(ranges[part][0], new[part]),
            "deleted": max(0, new[part] - ranges[part][0]),
        }
        for part in parts
    ]
    due = {(topic, row["partition"]): row["new_start"] for row in rows if row["deleted"]}
    total = sum(row["deleted"] for row in rows)
    unread, unchecked = _unread(admin, ranges, due) if due else ([], 0)
    document = {
        "topic": topic,
        "deleted": total,
        "partitions": rows,
        "unread": unread,
        "groups_unchecked": unchecked,
        "dry_run": dry_run,
    }
    if not emit_document(document, output, name="topic"):
        emit_table(rows)
        for row in unread:
            say(f"group {row['group']} has not read {row['messages']} of them")
    if unchecked:
        say(
            f"{counted(unchecked, 'group')} not checked (only the first {_GROUPS_MAX} are): "
            f"they may not have read the messages; check them: moldau group lag GROUP"
        )
    if not due:
        say("nothing to delete: no partition has messages before that")
    elif dry_run:
        say(f"about {counted(total, 'message')} would be deleted; nothing was deleted")
    else:
        confirm(
            f"Delete about {counted(total, 'message')} of {topic}? They cannot be restored.",
            yes=yes,
        )
        _delete(admin, topic, due)
        say(f"deleted about {counted(total, 'message')} of {topic}")


def _delete(admin: "Admin", topic: str, due: Mapping[Part, int]) -> None:
    """What was shown, though there may be more messages by now."""
    try:
        admin.delete_records(due)
    except RejectedError as error:
        if error.code != ErrorCode.POLICY_VIOLATION:
            raise
        raise CommandError(
            f"{topic} keeps the last message of each key (cleanup.policy=compact), and is not "
            "trimmed",
            hint=f"allow it: moldau topic alter {topic} --config cleanup.policy=compact,delete",
        ) from error


def _parts(admin: "Admin", topic: str, numbers: Sequence[int]) -> list[Part]:
    known = [part.partition for part in admin.topic(topic).partitions]
    if unknown := [number for number in numbers if number not in known]:
        raise CommandError(
            f"{topic} has partitions 0 to {len(known) - 1}, not {unknown[0]}",
            hint=f"list them: moldau topic describe {topic}",
            code=ExitCode.NOT_FOUND,
        )
    return [(topic, number) for number in known if not numbers or number in numbers]


def _unread(
    admin: "Admin", ranges: Mapping[Part, tuple[int, int]], due: Mapping[Part, int]
) -> tuple[list[dict[str, Any]], int]:
    """Groups with committed offsets before the new start, and how many messages they miss; and
    how many groups were not looked at."""
    found = []
    groups = admin.groups()
    for group in groups[:_GROUPS_MAX]:
        missed = sum(
            due[part] - max(lag.committed_offset, ranges[part][0])
            for lag in admin.group(group.name).lags
            for part in [(lag.topic, lag.partition)]
            if part in due and 0 <= lag.committed_offset < due[part]
        )
        if missed:
            found.append({"group": group.name, "messages": missed})
    return found, max(0, len(groups) - _GROUPS_MAX)
