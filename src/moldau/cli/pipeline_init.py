"""Owns `moldau pipeline init`: a project of Spark Declarative Pipelines to begin with."""

from pathlib import Path

import click

from moldau.cli.lazy import command
from moldau.cli.options import complete_topics, plain_brokers_option
from moldau.cli.output import say


@command(
    "init",
    examples=(
        "moldau pipeline init my-project",
        "moldau pipeline init my-project --source clicks --target clicks-by-page",
        "moldau pipeline init my-project -b broker.example:9092",
    ),
)
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--source",
    default="events",
    show_default=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="What it reads.",
)
@click.option(
    "--target",
    default="counts",
    show_default=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="What it writes.",
)
@plain_brokers_option
def init(folder: str, source: str, target: str, brokers: str) -> None:
    """Write a project: Python and SQL that read a topic, keep a table, and write a topic."""
    from moldau.spark.pipelines.project import init as write_project

    for path in write_project(Path(folder), bootstrap=brokers, source=source, target=target):
        click.echo(str(path))
    say(f"run it: moldau pipeline run {folder if '/' in folder else './' + folder}")
