"""`moldau topic`: create, list, describe, alter and delete."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    Properties,
    brokers_option,
    complete_topics,
    open_admin,
    output_option,
    pairs_option,
    topic_argument,
    yes_option,
)
from moldau.cli.output import (
    NO_LEADER_HINT,
    cell_text,
    confirm,
    counted,
    emit_document,
    emit_rows,
    emit_table,
    existing_names,
    say,
)
from moldau.client.errors import NotFoundError

if TYPE_CHECKING:
    from moldau.client.kafka.admin import TopicInfo


@click.group(
    "topic",
    cls=LazyGroup,
    lazy={"trim": ("topic_trim:trim", "Delete the oldest messages of a topic.")},
    examples=(
        "moldau topic create orders --partitions 6",
        "moldau topic describe orders",
        "moldau topic alter orders --config retention.ms=86400000",
    ),
)
def topic() -> None:
    """Create, list, describe, alter, trim and delete topics."""


@topic.command(
    "create",
    examples=(
        "moldau topic create orders",
        "moldau topic create orders --partitions 6 --config cleanup.policy=compact",
        "moldau topic create orders --if-not-exists -b broker.example:9092",
    ),
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=Integer(1), help="[default: topic.partitions of the broker]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=Integer(1),
    help="[default: topic.replication_factor of the broker]",
)
@pairs_option("-c", "--config", help_text="A setting of the topic")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic already exists.")
@brokers_option
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: Properties,
    if_not_exists: bool,
    brokers: str,
    properties: Properties,
) -> None:
    """Create topics."""
    admin = open_admin(brokers, properties)
    existing = {info.name for info in admin.topics()} if if_not_exists else set()
    for name in topics:
        if name in existing:
            say(f"topic {name} already exists")
            continue
        admin.create_topic(
            name,
            partitions=partitions or -1,
            replication_factor=replication_factor or -1,
            config=dict(config),
        )
        say(f"created topic {name}")


@topic.command(
    "list",
    examples=(
        "moldau topic list",
        "moldau topic list --all -o json",
        "moldau topic list -o name | wc -l",
    ),
)
@click.option("-a", "--all", "show_all", is_flag=True, help="Include internal topics.")
@output_option
@brokers_option
def list_topics(show_all: bool, output: str, brokers: str, properties: Properties) -> None:
    """List topics."""
    found = open_admin(brokers, properties).topics()
    rows = [
        {
            "name": info.name,
            "partitions": len(info.partitions),
            "replication_factor": info.replication_factor,
        }
        for info in found
        if show_all or not info.internal
    ]
    hint = "no topics; create one: moldau topic create NAME"
    emit_rows(rows, output, name="name", if_empty=hint)


@topic.command(
    "describe",
    examples=(
        "moldau topic describe orders",
        "moldau topic describe orders --all-config",
        "moldau topic describe orders -o json",
    ),
)
@topic_argument
@click.option("--all-config", is_flag=True, help="Include settings that have their default.")
@output_option
@brokers_option
def describe(
    topic: str, all_config: bool, output: str, brokers: str, properties: Properties
) -> None:
    """Show a topic's partitions, offsets and configuration."""
    admin = open_admin(brokers, properties)
    info = admin.topic(topic, offsets=True)
    config = {
        entry.name: entry.value
        for entry in admin.topic_config(topic)
        if all_config or not entry.default
    }
    rows = partition_rows(info)
    document = {
        "name": info.name,
        "partition_count": len(info.partitions),
        "replication_factor": info.replication_factor,
        "internal": info.internal,
        "partitions": rows,
        "config": config,
    }
    if emit_document(document, output, name="name"):
        return
    click.echo(_headline(info, rows))
    if config and not all_config:
        click.echo("config: " + ", ".join(f"{key}={cell_text(config[key])}" for key in config))
    click.echo()
    emit_table(rows)
    offline = [f"{info.name}-{row['partition']}" for row in rows if row["leader"] is None]
    if offline:
        say(f"without a leader: {', '.join(offline)} ({NO_LEADER_HINT})")
    if all_config:
        click.echo()
        emit_table([{"config": key, "value": value} for key, value in config.items()])


def _headline(info: "TopicInfo", rows: list[dict[str, Any]]) -> str:
    """A summary in one line; counts only partitions whose leader responded."""
    known = [row["messages"] for row in rows if row["messages"] is not None]
    text = (
        f"{info.name}: {counted(len(rows), 'partition')}, "
        f"replication factor {info.replication_factor}, about {counted(sum(known), 'message')}"
    )
    unknown = len(rows) - len(known)
    return f"{text} ({counted(unknown, 'partition')} offline)" if unknown else text


def partition_rows(info: "TopicInfo") -> list[dict[str, Any]]:
    """A row per partition; None where no leader responded."""
    rows: list[dict[str, Any]] = []
    for part in info.partitions:
        known = part.start_offset >= 0 and part.end_offset >= 0
        rows.append(
            {
                "partition": part.partition,
                "leader": part.leader if part.leader >= 0 else None,
                "replicas": list(part.replicas),
                "isr": list(part.isrs),
                "start_offset": part.start_offset if known else None,
                "end_offset": part.end_offset if known else None,
                "messages": part.end_offset - part.start_offset if known else None,
            }
        )
    return rows


@topic.command(
    "alter",
    examples=(
        "moldau topic alter orders --partitions 12",
        "moldau topic alter orders --config retention.ms=86400000",
        "moldau topic alter orders --delete-config retention.ms",
    ),
)
@topic_argument
@click.option(
    "-p", "--partitions", type=Integer(1), help="New number of partitions; can only be increased."
)
@pairs_option("-c", "--config", help_text="Set a setting of the topic")
@click.option(
    "-d",
    "--delete-config",
    "removals",
    multiple=True,
    metavar="KEY",
    help="Reset a setting to its default; may be repeated.",
)
@brokers_option
def alter(
    topic: str,
    partitions: int | None,
    config: Properties,
    removals: tuple[str, ...],
    brokers: str,
    properties: Properties,
) -> None:
    """Change a topic's settings, or add partitions."""
    if partitions is None and not config and not removals:
        raise CommandError(
            "nothing to change",
            hint="add --partitions, --config or --delete-config",
            code=ExitCode.USAGE,
        )
    admin = open_admin(brokers, properties)
    admin.topic(topic)
    if removals:
        # The broker accepts unknown names here, so check them first.
        known = [entry.name for entry in admin.topic_config(topic)]
        _check_names(removals, known)
    if config or removals:
        admin.alter_topic_config(topic, dict(config), removals)
    if partitions is not None:
        admin.add_partitions(topic, partitions)
    say(f"changed topic {topic}")


def _check_names(names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            raise CommandError(
                f"unknown topic setting {name}",
                hint=f"did you mean {close[0]}?"
                if close
                else "list them: moldau topic describe TOPIC --all-config",
                code=ExitCode.USAGE,
            )


@topic.command(
    "delete",
    examples=(
        "moldau topic delete orders",
        "moldau topic delete orders payments -y",
        "moldau topic delete orders --if-exists -y",
    ),
)
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@yes_option
@brokers_option
def delete(
    topics: tuple[str, ...], if_exists: bool, yes: bool, brokers: str, properties: Properties
) -> None:
    """Delete topics with all their messages."""
    admin = open_admin(brokers, properties)
    existing = {info.name for info in admin.topics()}
    for name in topics:
        if name not in existing:
            with contextlib.suppress(NotFoundError):
                # It may be one that this user may not see.
                admin.topic(name)
    present = existing_names("topic", topics, existing, if_exists=if_exists)
    if not present:
        return
    confirm(f"Delete {', '.join(present)} with all messages?", yes=yes)
    for name in present:
        admin.delete_topic(name)
        say(f"deleted topic {name}")
