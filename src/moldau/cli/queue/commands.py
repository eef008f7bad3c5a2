"""`moldau queue`: the commands for work queues."""

import click

from moldau.cli.click_groups import LazyGroup

_COMMANDS = {
    "send": ("send:send", "Send messages, now or with a delay."),
    "work": ("work:work", "Run a command for each message, or print them."),
    "list": ("view:list_groups", "List queue groups."),
    "peek": ("view:peek", "Browse messages without leasing them."),
    "stats": ("view:stats", "Show a group's backlog and settings."),
    "redrive": ("redrive:redrive", "Send dead letters back to their topics."),
    "delete": ("redrive:delete", "Delete queue groups."),
}


@click.group(
    "queue",
    cls=LazyGroup,
    lazy=_COMMANDS,
    package="moldau.cli.queue",
    examples=(
        "moldau queue send jobs 'resize 1.png' 'resize 2.png'",
        "moldau queue work jobs --group resizers -- ./resize.sh",
        "moldau queue list",
    ),
)
def queue() -> None:
    """Work queues on topics: each message is leased to one worker, and redelivered if it fails."""
