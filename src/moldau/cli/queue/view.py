"""`moldau queue list`, `peek` and `stats`: inspect groups without leasing messages."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.messages.formats import json_value
from moldau.cli.options import Duration, Integer, output_option
from moldau.cli.output import (
    counted,
    emit_document,
    emit_rows,
    emit_table,
    one_line,
    say,
)
from moldau.cli.queue.connect import (
    complete_queue_groups,
    complete_queue_topics,
    connected,
    group_option,
    grpc_option,
    queue_topic_argument,
)
from moldau.cli.signals import output_closed

if TYPE_CHECKING:
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.groups import GroupInfo, GroupStats, PeekedMessage

GROUP_HINT: Final = "create one: moldau queue work TOPIC --group NAME"
LIST_HINT: Final = "list groups: moldau queue list"

_STATS_AT_ONCE: Final = 8
_VALUE_CHARACTERS_MAX: Final = 60
"""In a table; other formats print all."""


@command(
    "list",
    examples=(
        "moldau queue list",
        "moldau queue list --topic jobs",
        "moldau queue list -o name",
    ),
)
@click.option("--topic", shell_complete=complete_queue_topics, help="Only groups of this topic.")
@output_option
@grpc_option
def list_groups(topic: str | None, output: str, addresses: str) -> None:
    """List queue groups and their backlog."""

    async def listing() -> list[dict[str, Any]]:
        async with connected(addresses) as client:
            found = await client.groups(topic)
            if output == "name":
                return [{"group": each.group} for each in found]
            turns = asyncio.Semaphore(_STATS_AT_ONCE)

            async def row(each: "GroupInfo") -> dict[str, Any]:
                async with turns:
                    return await group_row(client, each)

            return [row for row in await asyncio.gather(*map(row, found)) if row]

    rows = asyncio.run(listing())
    if output == "table":
        rows = [{**row, "topics": ",".join(row["topics"])} for row in rows]
    of_topic = f" of {topic}" if topic else ""
    emit_rows(rows, output, name="group", if_empty=f"no queue groups{of_topic}; {GROUP_HINT}")


async def group_row(client: "AsyncQueueClient", group: "GroupInfo") -> dict[str, Any]:
    """A row; empty if the group was deleted meanwhile."""
    from moldau.client.errors import NotFoundError

    try:
        found = await client.stats(group.group)
    except NotFoundError:
        return {}
    return {
        "group": group.group,
        "topics": list(group.topics),
        "consumers": found.consumers,
        "ready": found.ready,
        "leased": found.leased,
        "delayed": found.delayed,
        "dead_letter_topic": group.dead_letter_topic,
    }


@command(
    "peek",
    examples=(
        "moldau queue peek jobs --group resizers",
        "moldau queue peek jobs -g resizers -n 100 -o json | jq '.[].reason'",
        "moldau queue peek jobs -g resizers --grpc broker.example:8000",
    ),
)
@queue_topic_argument
@group_option
@click.option(
    "-n",
    "--count",
    type=Integer(1, 1000),
    default=10,
    show_default=True,
    help="Show N messages, the oldest first.",
)
@output_option
@grpc_option
def peek(topic: str, group: str, count: int, output: str, addresses: str) -> None:
    """Browse a group's backlog: messages that are ready, leased, delayed or being dead-lettered."""

    async def peeking() -> "list[PeekedMessage]":
        async with connected(addresses) as client:
            return await client.peek(group, topic, count)

    found = asyncio.run(peeking())
    if output == "table":
        if found:
            emit_table(peeked_rows(found))
        else:
            say(f"{group} has no backlog in {topic}")
        return
    emit_rows([peeked_document(each) for each in found], output, name="place")


def peeked_rows(found: "list[PeekedMessage]") -> list[dict[str, Any]]:
    """Rows for a table: values are shortened."""
    return [
        {
            "partition": each.message.partition,
            "offset": each.message.offset,
            "state": each.state,
            "attempt": each.message.attempt or None,
            "due": each.due.astimezone().isoformat(sep=" ", timespec="seconds")
            if each.due
            else None,
            "consumer": each.consumer,
            "reason": one_line(each.reason.encode(), _VALUE_CHARACTERS_MAX),
            "key": one_line(each.message.key, _VALUE_CHARACTERS_MAX),
            "value": one_line(each.message.value, _VALUE_CHARACTERS_MAX),
        }
        for each in found
    ]


def peeked_document(each: "PeekedMessage") -> dict[str, Any]:
    """A message with all fields, for JSON and YAML."""
    message = each.message
    return {
        "place": f"{message.topic}-{message.partition}@{message.offset}",
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "state": each.state,
        "attempt": message.attempt,
        "due": each.due.isoformat() if each.due else None,
        "consumer": each.consumer or None,
        "reason": each.reason or None,
        "key": json_value(message.key),
        "value": json_value(message.value),
        "headers": [[name, json_value(value)] for name, value in message.headers],
    }


@command(
    "stats",
    examples=(
        "moldau queue stats resizers",
        "moldau queue stats resizers -o json | jq .ready",
        "moldau queue stats resizers --watch 1s",
    ),
)
@click.argument("group", shell_complete=complete_queue_groups)
@click.option(
    "-w", "--watch", type=Duration(), metavar="DURATION", help="Refresh at this interval."
)
@output_option
@grpc_option
def stats(group: str, watch: float | None, output: str, addresses: str) -> None:
    """Show a group's backlog by partition, and its settings."""

    async def watching() -> None:
        async with connected(addresses) as client:
            while True:
                found = await stats_of(client, group)
                show_stats(found, output, is_watched=watch is not None)
                if watch is None:
                    return
                await asyncio.sleep(max(watch, 0.1))
                if output_closed():
                    raise BrokenPipeError

    try:
        asyncio.run(watching())
    except KeyboardInterrupt:
        # The normal end of --watch.
        if watch is None:
            raise


async def stats_of(client: "AsyncQueueClient", group: str) -> "GroupStats":
    """Raises NotFoundError with a hint how to create a group."""
    from moldau.client.errors import NotFoundError

    try:
        return await client.stats(group)
    except NotFoundError as error:
        raise NotFoundError(
            f"queue group {group} does not exist",
            hint=f"{LIST_HINT} · {GROUP_HINT}",
        ) from error


def show_stats(found: "GroupStats", output: str, *, is_watched: bool) -> None:
    """Print the stats; when watched, once per interval."""
    document = stats_document(found)
    if emit_document(document, output, name="group", is_stream=is_watched):
        return
    if is_watched:
        click.clear()
    click.echo(
        f"{found.group}: {found.ready} ready, {found.leased} leased, {found.delayed} delayed, "
        f"{found.dead} being dead-lettered; {counted(found.consumers, 'consumer')}"
    )
    click.echo(
        f"lease {found.visibility:g} s, {counted(found.attempts, 'attempt')}, backoff "
        f"{found.backoff:g} to {found.backoff_max:g} s, dead letters to "
        f"{found.dead_letter_topic or '(hidden)'}"
    )
    rows = document["partitions"]
    if rows:
        click.echo()
        emit_table(rows)


def stats_document(found: "GroupStats") -> dict[str, Any]:
    """All fields; None where a partition's leader did not respond."""
    numbers = ("ready", "leased", "delayed", "dead", "floor", "end")
    return {
        "group": found.group,
        "consumers": found.consumers,
        "ready": found.ready,
        "leased": found.leased,
        "delayed": found.delayed,
        "dead": found.dead,
        "visibility_seconds": found.visibility,
        "attempts_max": found.attempts,
        "backoff_seconds": found.backoff,
        "backoff_seconds_max": found.backoff_max,
        "dead_letter_topic": found.dead_letter_topic,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "leader": each.leader if each.leader >= 0 else None,
                **{name: getattr(each, name) if each.is_known else None for name in numbers},
            }
            for each in found.partitions
        ],
    }
