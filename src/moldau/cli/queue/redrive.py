"""Owns `moldau queue redrive` and `moldau queue delete`: what changes a group from outside."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError
from moldau.cli.options import yes_option
from moldau.cli.output import confirm, counted, emit_table, one_line, progress_bar, say
from moldau.cli.queue.connect import (
    complete_queue_groups,
    complete_queue_topics,
    connected,
    grpc_option,
    run,
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
        "moldau queue redrive resizers --max 100",
        "moldau queue redrive resizers --to jobs-retry -y",
    ),
)
@click.argument("group", shell_complete=complete_queue_groups)
@click.option(
    "--to",
    metavar="TOPIC",
    shell_complete=complete_queue_topics,
    help="Send them there, and not to where each came from.",
)
@click.option("--max", "limit", type=click.IntRange(1), help="So many at most.")
@click.option(
    "--from",
    "dead_letter",
    metavar="TOPIC",
    shell_complete=complete_queue_topics,
    help="The dead-letter topic, if the group is gone.  [default: the group's]",
)
@click.option("--dry-run", is_flag=True, help="Show what there is, and send nothing.")
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
    """Send a group's dead letters back to the topics that they came from. Shows them first.

    They are for this group alone: other queue groups of these topics pass them. Consumers that are
    in no queue group see them again. With --to they are for all who read that topic.

    They begin anew, with all their attempts. What was sent back once stays done: the next redrive
    begins after it.
    """

    waiting = run(find_dead_letters(addresses, group, dead_letter))
    if not waiting.total:
        say(f"no dead letters of {group} in {waiting.topic}")
        return
    emit_table([dead_row(each) for each in waiting.first])
    if waiting.total > len(waiting.first):
        say(f"… and {waiting.total - len(waiting.first)} more in {waiting.topic}")
    total = waiting.total if limit is None else min(limit, waiting.total)
    where = f"to {to}" if to else "back to where they came from"
    if dry_run:
        say(f"{counted(total, 'message')} would be sent {where}; nothing was sent")
        return
    # Outside of the loop, which would not notice Ctrl-C while it waits for an answer.
    if not to:
        say("other queue groups skip them; consumers in no queue group see them again")
    confirm(f"Send {counted(total, 'message')} {where}?", yes=yes)
    say(redrive_summary(run(run_redrive(addresses, group, waiting.topic, to, limit, total))))


class PendingRedrive(NamedTuple):
    """Dead letters that were not sent back yet: where, how many, and the first of them."""

    topic: str
    total: int
    first: "list[PeekedMessage]"


async def dead_letter_topic(client: "AsyncQueueClient", group: str) -> str:
    """Of the group; of one that is gone, the usual one."""
    from moldau.client.errors import NotFoundError
    from moldau.client.queue.client import DEAD_LETTER_SUFFIX

    try:
        found = (await client.stats(group)).dead_letter_topic
    except NotFoundError as error:
        known = {topic.name for topic in (await client.topology()).topics}
        if group + DEAD_LETTER_SUFFIX not in known:
            raise NotFoundError(
                f"there is no queue group {group}, and no topic {group}{DEAD_LETTER_SUFFIX}",
                hint="name its dead-letter topic: --from TOPIC",
            ) from error
        found = ""
    return found or group + DEAD_LETTER_SUFFIX


async def find_dead_letters(addresses: str, group: str, dead_letter: str | None) -> PendingRedrive:
    """What the group of redrives has before it; it is made by that."""
    from moldau.client.errors import NotFoundError
    from moldau.client.queue.redrive import REDRIVE_SUFFIX

    reader = group + REDRIVE_SUFFIX
    async with connected(addresses) as client:
        topic = dead_letter or await dead_letter_topic(client, group)
        try:
            worker = await client.connect(reader, topic)
        except NotFoundError:
            if dead_letter is not None:
                raise
            # It is made with the first dead letter.
            return PendingRedrive(topic, 0, [])
        await worker.close()
        found = await client.stats(reader)
        first = await client.peek(reader, topic, _PREVIEW_MESSAGES)
        return PendingRedrive(topic, found.ready + found.leased + found.delayed, first)


async def run_redrive(
    addresses: str, group: str, topic: str, to: str | None, limit: int | None, total: int
) -> "RedriveProgress":
    """Send them, and show how far it is."""
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
    """What was done, in a sentence."""
    more = ""
    if sums.doubles:
        more += f", {counted(sums.doubles, 'double')} dropped"
    if sums.strangers:
        more += f", {counted(sums.strangers, 'message')} of others passed over"
    return f"sent {counted(sums.sent, 'message')}{more}"


def dead_row(each: "PeekedMessage") -> dict[str, Any]:
    """A dead letter: where it came from, and why it is one."""
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
        "moldau queue delete resizers -y",
        "moldau queue delete resizers --if-exists -y",
    ),
)
@click.argument("group", shell_complete=complete_queue_groups)
@click.option("--if-exists", is_flag=True, help="Be content if it is not there.")
@yes_option
@grpc_option
def delete(group: str, if_exists: bool, yes: bool, addresses: str) -> None:
    """Forget a queue group: its settings, and which messages it has settled.

    The messages stay. A group of the same name begins anew, with all that the topic holds.
    """

    from moldau.client.errors import NotFoundError

    async def asking() -> "GroupStats":
        async with connected(addresses) as client:
            return await client.stats(group)

    async def deleting() -> None:
        async with connected(addresses) as client:
            await client.delete_group(group)

    try:
        found = run(asking())
    except NotFoundError as error:
        if if_exists:
            say(f"queue group {group} does not exist")
            return
        raise NotFoundError(
            f"queue group {group} does not exist; nothing was deleted",
            hint="be content: --if-exists",
        ) from error
    left = found.ready + found.leased + found.delayed
    busy = f" and {counted(found.consumers, 'consumer')} at work" if found.consumers else ""
    confirm(f"Delete {group}, with {counted(left, 'message')} before it{busy}?", yes=yes)
    run(deleting())
    say(f"deleted queue group {group}")
