"""Owns `moldau pipeline`: what runs on Spark between topics and a lake."""

import click

from moldau.cli.click_groups import LazyCommand, LazyGroup

_COMMANDS = {
    "run": LazyCommand(
        "moldau.cli.pipeline.run:run", "Run a pipeline to its end, or continuously."
    ),
    "plan": LazyCommand("moldau.cli.pipeline.run:plan", "Show what would run; changes nothing."),
    "list": LazyCommand(
        "moldau.cli.pipeline.view:list_pipelines", "List pipelines and their states."
    ),
    "status": LazyCommand(
        "moldau.cli.pipeline.view:status", "Show how far pipelines are, and how fast."
    ),
    "reset": LazyCommand(
        "moldau.cli.pipeline.reset:reset", "Make a pipeline begin somewhere else."
    ),
    "delete": LazyCommand(
        "moldau.cli.pipeline.reset:delete", "Forget a pipeline that is not needed."
    ),
}


@click.group(
    "pipeline",
    cls=LazyGroup,
    lazy=_COMMANDS,
    examples=(
        "moldau pipeline run archive --topic clicks --to ./lake",
        "moldau pipeline status --watch",
        "moldau pipeline run archive --topic clicks --to ./lake --trigger 5s",
    ),
)
def pipeline() -> None:
    """Archive, compact, replay, aggregate and audit topics on Spark."""
