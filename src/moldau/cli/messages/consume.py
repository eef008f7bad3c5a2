"""Owns `moldau consume`: the messages of a topic, alone or shared with a group."""

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
from moldau.cli.options import Duration, Properties, brokers_option, topic_argument
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
@click.option("-g", "--group", help="Share the topic with this group; goes on where it was.")
@click.option("--from-beginning", is_flag=True, help="Start at the first message.")
@click.option(
    "--offset",
    "position",
    type=PositionParam(),
    metavar="WHERE",
    help="Start at: beginning, end, N, -N (N before the end), @TIME or @-10m.",
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Only this; may be repeated."
)
@click.option("-n", "--count", "limit", type=click.IntRange(1), help="Stop after so many.")
@click.option("--timeout", type=Duration(), help="Stop after so long without a message.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop when all has been read.")
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
    """Print messages of a topic: new ones, or from where you say."""
    if position is not None and from_beginning:
        raise CommandError("--offset and --from-beginning exclude each other", code=ExitCode.USAGE)
    printed = printing.make()
    start = Position.beginning() if from_beginning else position
    found, offline = readable_partitions(brokers, topic, partitions, dict(properties))
    link = BrokerLink(brokers)
    consumer = open_consumer(link, [topic], dict(properties), group=group)
    reader: MessagePrinter | None = None
    try:
        with stop_signals() as stop:
            _begin(consumer, topic, found, group if not partitions else None, start, position)
            reader = MessagePrinter(consumer, printed, stop, link, offline)
            reader.run(
                limit=limit,
                idle_seconds_max=timeout,
                exit_at_end=exit_at_end,
                store=group is not None,
            )
    finally:
        close_consumer(consumer, commit=group is not None and reader is not None)
    if limit is not None and reader.count < limit and not stop and not exit_at_end:
        raise CommandError(f"{reader.count} of {limit} messages came, then none for {timeout:g} s")


def _begin(
    consumer: "Consumer",
    topic: str,
    partitions: list[int],
    group: str | None,
    start: Position | None,
    position: Position | None,
) -> None:
    """Subscribe in a group, else take the partitions by hand."""
    if group is None:
        consumer.assign((start or Position.end()).resolve(consumer, topic, partitions))
        return

    def on_assign(_: "Consumer", parts: list[Any]) -> None:
        # Without --offset, the group goes on where it was.
        if position is not None and parts:
            chosen = [part.partition for part in parts]
            consumer.assign(position.resolve(consumer, topic, chosen))

    consumer.subscribe([topic], on_assign=on_assign)
