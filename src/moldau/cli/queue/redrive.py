"""`moldau queue redrive` and `moldau queue delete`."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError
from moldau.cli.options import Integer, yes_option
from moldau.cli.output import confirm, counted, emit_table, one_line, progress_bar, say
from moldau.cli.queue.connect import (
    complete_queue_groups,
    complete_queue_topics,
    connected,
    grpc_option,
)

if TYPE_CHECKING:
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.groups import GroupStats, PeekedMessage
    from moldau.client.queue.redrive import RedriveProgress

_PREVIEW_MESSAGES: Final = 5
_TEXT_CHARACTERS_MAX: Final = 60


@command(
    "redrive",
    examples=(
        "moldau queue redrive resizers --dry-run",
        "moldau queue redrive resizers -n 100",
        "moldau queue redrive resizers --to jobs-retry -y",
    ),
)
@click.argument("group", shell_complete=complete_queue_groups)
@click.option(
    "--to",
    metavar="TOPIC",
    shell_complete=complete_queue_topics,
    help="Send them to this topic instead of their original topics.",
)
@click.option("-n", "--count", "limit", type=Integer(1), help="Send at most N messages.")
@click.option(
    "--from",
    "dead_letter",
    metavar="TOPIC",
    shell_complete=complete_queue_topics,
    help="The dead-letter topic, if the group was deleted: with --to.  [default: the group's]",
)
@click.option("--dry-run", is_flag=True, help="Show the dead letters, and send nothing.")
@yes_option
@grpc_option
def redrive(
    group: str,
    to: str | None,
    limit: int | None,
    dead_letter: str | None,
    dry_run: bool,
    yes: bool,
    addresses: str,
) -> None:
    """Send a group's dead letters back to their original topics. Shows them first.

    Only this group receives them again: other queue groups of these topics skip them, but
    consumers outside of queue groups do not. With --to every reader of that topic receives them.

    Their attempts are counted from 1 again. The next redrive continues after the last message sent.
    """

    waiting = asyncio.run(find_dead_letters(addresses, group, dead_letter, to))
    if not waiting.total:
        say(f"no dead letters of {group} in {waiting.topic}")
        return
    emit_table([dead_row(each) for each in waiting.first])
    if waiting.total > len(waiting.first):
        say(f"… and {waiting.total - len(waiting.first)} more in {waiting.topic}")
    total = waiting.total if limit is None else min(limit, waiting.total)
    where = f"to {to}" if to else "back to their original topics"
    if dry_run:
        say(f"{counted(total, 'message')} would be sent {where}; nothing was sent")
        return
    # Outside of the event loop, which would not react to Ctrl-C at a prompt.
    if not to:
        say("other queue groups skip them; consumers outside of queue groups receive them again")
    confirm(f"Send {counted(total, 'message')} {where}?", yes=yes)
    sums = asyncio.run(run_redrive(addresses, group, waiting.topic, to, limit, total))
    say(redrive_summary(sums))


class PendingRedrive(NamedTuple):
    """Dead letters that were not redriven yet: their topic, number, and the first of them."""

    topic: str
    total: int
    first: "list[PeekedMessage]"


async def dead_letter_topic(client: "AsyncQueueClient", group: str) -> str:
    """The group's dead-letter topic; of a deleted group, the default one."""
    from moldau.client.errors import NotFoundError
    from moldau.client.queue.client import DEAD_LETTER_SUFFIX

    try:
        found = (await client.stats(group)).dead_letter_topic
    except NotFoundError as error:
        known = {topic.name for topic in (await client.topology()).topics}
        if group + DEAD_LETTER_SUFFIX not in known:
            raise NotFoundError(
                f"neither queue group {group} nor topic {group}{DEAD_LETTER_SUFFIX} exists",
                hint="give its dead-letter topic: --from TOPIC",
            ) from error
        found = ""
    return found or group + DEAD_LETTER_SUFFIX


async def find_dead_letters(
    addresses: str, group: str, dead_letter: str | None, to: str | None
) -> PendingRedrive:
    """The backlog of the group that redrives; creates that group."""
    from moldau.client.errors import NotFoundError
    from moldau.client.queue.redrive import REDRIVE_SUFFIX

    reader = group + REDRIVE_SUFFIX
    async with connected(addresses) as client:
        topic = dead_letter or await dead_letter_topic(client, group)
        if to is None and all(each.group != group for each in await client.groups()):
            raise NotFoundError(
                f"there is no queue group {group}: its topics are unknown",
                hint="create the group again, or choose where the messages go: --to TOPIC",
            )
        try:
            worker = await client.connect(reader, topic)
        except NotFoundError:
            if dead_letter is not None:
                raise
            # The topic is created with the first dead letter.
            return PendingRedrive(topic, 0, [])
        await worker.close()
        found = await client.stats(reader)
        first = await client.peek(reader, topic, _PREVIEW_MESSAGES)
        return PendingRedrive(topic, found.ready + found.leased + found.delayed, first)


async def run_redrive(
    addresses: str, group: str, topic: str, to: str | None, limit: int | None, total: int
) -> "RedriveProgress":
    """Send them, with a progress bar."""
    from moldau.client.errors import ClientError
    from moldau.client.queue.redrive import RedriveProgress

    sums = RedriveProgress(0, 0, 0)
    try:
        async with connected(addresses) as client:
            with progress_bar("redrive", total) as show:
                async for sums in client.redrive(group, topic=topic, to=to, limit=limit):
                    show(sum(sums))
    except ClientError as error:
        raise CommandError(
            str(error),
            hint=" · ".join(part for part in (redrive_summary(sums), error.hint) if part),
        ) from error
    return sums


def redrive_summary(sums: "RedriveProgress") -> str:
    """What was sent, in one line."""
    more = ""
    if sums.duplicates:
        more += f", {counted(sums.duplicates, 'duplicate')} dropped"
    if sums.skipped:
        more += f", {counted(sums.skipped, 'message')} of other groups skipped"
    return f"sent {counted(sums.sent, 'message')}{more}"


def dead_row(each: "PeekedMessage") -> dict[str, Any]:
    """A dead letter: its origin and its reason."""
    from moldau.model.queue_headers import (
        DEAD_ATTEMPTS_HEADER,
        DEAD_OFFSET_HEADER,
        DEAD_PARTITION_HEADER,
        DEAD_REASON_HEADER,
        DEAD_TOPIC_HEADER,
    )

    headers = dict(each.message.headers)

    def text(name: str) -> str:
        return one_line(headers.get(name), _TEXT_CHARACTERS_MAX) or ""

    return {
        "from": f"{text(DEAD_TOPIC_HEADER)}-{text(DEAD_PARTITION_HEADER)}"
        f"@{text(DEAD_OFFSET_HEADER)}",
        "attempts": text(DEAD_ATTEMPTS_HEADER),
        "reason": text(DEAD_REASON_HEADER),
        "key": one_line(each.message.key, _TEXT_CHARACTERS_MAX),
        "value": one_line(each.message.value, _TEXT_CHARACTERS_MAX),
    }


@command(
    "delete",
    examples=(
        "moldau queue delete resizers",
        "moldau queue delete resizers mailers -y",
        "moldau queue delete resizers --if-exists -y",
    ),
)
@click.argument(
    "groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_queue_groups
)
@click.option("--if-exists", is_flag=True, help="Succeed if the group does not exist.")
@yes_option
@grpc_option
def delete(groups: tuple[str, ...], if_exists: bool, yes: bool, addresses: str) -> None:
    """Delete queue groups: their settings, and which messages they have settled.

    The messages are kept. A new group of the same name starts at the beginning of its topics.
    """
    found = asyncio.run(_existing(addresses, dict.fromkeys(groups), if_exists=if_exists))
    if not found:
        return
    names = ", ".join(found)
    left = sum(stats.ready + stats.leased + stats.delayed for stats in found.values())
    consumers = sum(stats.consumers for stats in found.values())
    busy = f" and {counted(consumers, 'active consumer')}" if consumers else ""
    confirm(f"Delete {names}, with a backlog of {counted(left, 'message')}{busy}?", yes=yes)
    asyncio.run(_delete(addresses, found))


async def _existing(
    addresses: str, groups: Iterable[str], *, if_exists: bool
) -> "dict[str, GroupStats]":
    """Raises NotFoundError, before anything is deleted, for a group that does not exist."""
    from moldau.client.errors import NotFoundError

    found: dict[str, GroupStats] = {}
    async with connected(addresses) as client:
        for group in groups:
            try:
                found[group] = await client.stats(group)
            except NotFoundError as error:
                if not if_exists:
                    raise NotFoundError(
                        f"queue group {group} does not exist; nothing was deleted",
                        hint="list groups: moldau queue list · ignore missing ones: --if-exists",
                    ) from error
                say(f"queue group {group} does not exist")
    return found


async def _delete(addresses: str, groups: Iterable[str]) -> None:
    async with connected(addresses) as client:
        for group in groups:
            await client.delete_group(group)
            say(f"deleted queue group {group}")
