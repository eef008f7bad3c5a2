"""Owns `moldau queue`: topics as work queues, on the client's queue API."""

import click

from moldau.cli.click_groups import LazyCommand, LazyGroup

_COMMANDS = {
    "send": LazyCommand("moldau.cli.queue.send:send", "Send messages, now or for later."),
    "work": LazyCommand(
        "moldau.cli.queue.work:work", "Run a command for each message, or print them."
    ),
    "list": LazyCommand("moldau.cli.queue.view:list_groups", "List queue groups."),
    "peek": LazyCommand("moldau.cli.queue.view:peek", "Look at messages without taking them."),
    "stats": LazyCommand("moldau.cli.queue.view:stats", "Show what a group has before it."),
    "redrive": LazyCommand(
        "moldau.cli.queue.redrive:redrive", "Send dead letters back to their topics."
    ),
    "delete": LazyCommand("moldau.cli.queue.redrive:delete", "Forget a group."),
}


@click.group(
    "queue",
    cls=LazyGroup,
    lazy=_COMMANDS,
    examples=(
        "moldau queue send jobs 'resize 1.png' 'resize 2.png'",
        "moldau queue work jobs --group resizers -- ./resize.sh",
        "moldau queue list",
    ),
)
def queue() -> None:
    """Topics as work queues: each message goes to one worker, and again if it fails."""
