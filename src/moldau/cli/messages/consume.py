"""`moldau consume`: prints the messages of a topic, alone or as a member of a group."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.print_options import PrintOptions, printing_options
from moldau.cli.messages.reader import (
    BrokerLink,
    MessagePrinter,
    close_consumer,
    open_consumer,
    readable_partitions,
)
from moldau.cli.options import (
    Duration,
    Integer,
    Properties,
    brokers_option,
    partitions_option,
    topic_argument,
)
from moldau.cli.signals import stop_signals
from moldau.cli.start_position import Position, PositionParam

if TYPE_CHECKING:
    from confluent_kafka import Consumer


@command(
    "consume",
    examples=(
        "moldau consume orders --from-beginning -n 10",
        "moldau consume orders --group billing -o json",
        "moldau consume orders --offset @-1h -f '%p:%o %k=%s\\n'",
    ),
)
@topic_argument
@click.option("-g", "--group", help="Join this consumer group; resumes at its committed offsets.")
@click.option("--from-beginning", is_flag=True, help="Start at the first message.")
@click.option(
    "--offset",
    "position",
    type=PositionParam(),
    metavar="POSITION",
    help="Start at: beginning, end, N, -N (N before the end), @TIME or @-10m.",
)
@partitions_option
@click.option("-n", "--count", "limit", type=Integer(1), help="Stop after N messages.")
@click.option("--timeout", type=Duration(), help="Stop after this long without a message.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of the topic.")
@printing_options
@brokers_option
def consume(
    topic: str,
    group: str | None,
    from_beginning: bool,
    position: Position | None,
    partitions: tuple[int, ...],
    limit: int | None,
    timeout: float | None,
    exit_at_end: bool,
    printing: PrintOptions,
    brokers: str,
    properties: Properties,
) -> None:
    """Print messages of a topic: new ones, or from a given position."""
    if position is not None and from_beginning:
        raise CommandError("--offset and --from-beginning cannot be combined", code=ExitCode.USAGE)
    printed = printing.make()
    start = Position.beginning() if from_beginning else position
    found, offline = readable_partitions(brokers, topic, partitions, dict(properties))
    link = BrokerLink(brokers)
    consumer = open_consumer(link, [topic], dict(properties), group=group)
    reader: MessagePrinter | None = None
    try:
        with stop_signals() as stop:
            _begin(consumer, topic, found, group if not partitions else None, start, position)
            reader = MessagePrinter(
                consumer, printed, stop, link, offline, has_group=group is not None
            )
            with _explained(topic, group):
                reader.run(
                    limit=limit,
                    idle_seconds_max=timeout,
                    exit_at_end=exit_at_end,
                    store=group is not None,
                )
    finally:
        close_consumer(consumer, commit=group is not None and reader is not None)
    if limit is not None and reader.count < limit and not stop and not exit_at_end:
        raise CommandError(
            f"received {reader.count} of {limit} messages, then timed out after {timeout:g} s"
        )


@contextmanager
def _explained(topic: str, group: str | None) -> Iterator[None]:
    """A group of another kind is reported as such, with the next command."""
    from moldau.client.errors import RejectedError
    from moldau.model.errors import ErrorCode

    try:
        yield
    except RejectedError as error:
        if error.code != ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            raise
        raise CommandError(
            f"cannot join {group}: it is a queue group, or its members use another protocol",
            hint=f"use the queue group: moldau queue work {topic} -g {group} "
            "· or choose another group name",
        ) from error


def _begin(
    consumer: "Consumer",
    topic: str,
    partitions: list[int],
    group: str | None,
    start: Position | None,
    position: Position | None,
) -> None:
    """Subscribe as a group member, else assign the partitions."""
    if group is None:
        consumer.assign((start or Position.end()).resolve(consumer, topic, partitions))
        return

    def on_assign(_: "Consumer", parts: list[Any]) -> None:
        # Without --offset, the group resumes at its committed offsets.
        if position is not None and parts:
            chosen = [part.partition for part in parts]
            consumer.assign(position.resolve(consumer, topic, chosen))

    consumer.subscribe([topic], on_assign=on_assign)
