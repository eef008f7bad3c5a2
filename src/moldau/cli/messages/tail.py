"""`moldau tail`: prints the last messages of topics and follows them, without a group."""

from typing import Any

import click

from moldau.cli.click_groups import command
from moldau.cli.messages.print_options import PrintOptions, printing_options
from moldau.cli.messages.reader import (
    DRAIN_MESSAGES_MAX,
    BrokerLink,
    MessagePrinter,
    StallTimeout,
    close_consumer,
    open_consumer,
    readable_partitions,
)
from moldau.cli.options import Integer, Properties, brokers_option, complete_topics
from moldau.cli.signals import Stop, stop_signals
from moldau.cli.start_position import Position


@command(
    "tail",
    examples=(
        "moldau tail orders payments --print-key",
        "moldau tail orders -n 1 --no-follow -o json",
        "moldau tail orders --filter '.user.id==42 and header.source!=test' -f '%o %s\\n'",
    ),
)
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option(
    "-n",
    "--count",
    "last",
    type=Integer(0, 100_000),
    default=10,
    show_default=True,
    help="Print the last N messages first; a filter is applied to these N.",
)
@click.option(
    "--follow/--no-follow", default=True, help="Print new messages, too.  [default: follow]"
)
@printing_options
@brokers_option
def tail(
    topics: tuple[str, ...],
    last: int,
    follow: bool,
    printing: PrintOptions,
    brokers: str,
    properties: Properties,
) -> None:
    """Print the last messages of topics, over all partitions, then new ones."""
    named = list(dict.fromkeys(topics))
    printed = printing.make(topic=len(named) > 1)
    found = {name: readable_partitions(brokers, name, (), dict(properties))[0] for name in named}
    link = BrokerLink(brokers)
    consumer = open_consumer(link, named, dict(properties), group=None)
    try:
        with stop_signals() as stop:
            start = Position.before_end(last) if last else Position.end()
            consumer.assign(
                [
                    part
                    for name, indexes in found.items()
                    for part in start.resolve(consumer, name, indexes)
                ]
            )
            reader = MessagePrinter(consumer, printed, stop, link)
            if last:
                partitions = [
                    (name, number) for name, numbers in found.items() for number in numbers
                ]
                reader.write(_last_messages(reader, stop, partitions, last), store=False)
            if follow:
                reader.run(limit=None, idle_seconds_max=None, exit_at_end=False, store=False)
    finally:
        close_consumer(consumer, commit=False)


def _last_messages(
    reader: MessagePrinter, stop: Stop, partitions: list[tuple[str, int]], last: int
) -> list[Any]:
    """The newest messages of all partitions, merged by timestamp."""
    found: list[Any] = []
    stall = StallTimeout()
    while not stop and (missing := [part for part in partitions if not reader.ended(part)]):
        if messages := reader.receive(DRAIN_MESSAGES_MAX):
            found += messages
            stall.on_progress()
        else:
            stall.check(missing)
    found.sort(
        key=lambda message: (
            message.timestamp()[1],
            message.topic(),
            message.partition(),
            message.offset(),
        )
    )
    return found[-last:]
