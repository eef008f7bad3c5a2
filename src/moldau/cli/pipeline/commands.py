"""`moldau pipeline`: Spark jobs between topics and tables."""

import click

from moldau.cli.click_groups import LazyGroup

_COMMANDS = {
    "run": ("run:run", "Run a pipeline once, or continuously."),
    "plan": ("run:plan", "Show what would run, and change nothing."),
    "list": ("view:list_pipelines", "List pipelines and their state."),
    "status": ("view:status", "Show the progress of pipelines."),
    "reset": ("reset:reset", "Change the offsets where a pipeline continues."),
    "delete": ("reset:delete", "Delete pipelines and their checkpoints."),
}


@click.group(
    "pipeline",
    cls=LazyGroup,
    lazy=_COMMANDS,
    package="moldau.cli.pipeline",
    examples=(
        "moldau pipeline run archive --topic clicks --to ./lake",
        "moldau pipeline status --watch",
        "moldau pipeline run archive --topic clicks --to ./lake --trigger 5s",
    ),
)
def pipeline() -> None:
    """Archive, compact, replay, aggregate and audit topics on Spark."""
