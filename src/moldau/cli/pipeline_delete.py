"""Owns `moldau pipeline delete`: nothing is remembered, nor said, of a pipeline any more."""

import shutil
from pathlib import Path

import click

from moldau.cli.errors import CommandError
from moldau.cli.lazy import command
from moldau.cli.options import plain_brokers_option, yes_option
from moldau.cli.output import confirm, say
from moldau.cli.pipeline_common import (
    complete_pipelines,
    home_option,
)
from moldau.cli.pipeline_control import brokers_of, check_stopped


@command(
    "delete",
    examples=(
        "moldau pipeline delete archive-clicks",
        "moldau pipeline delete archive-clicks -y",
        "moldau pipeline delete archive-clicks -b broker.example:9092",
    ),
)
@click.argument("name", shell_complete=complete_pipelines)
@yes_option
@home_option
@plain_brokers_option
def delete(name: str, yes: bool, home: str, brokers: str) -> None:
    """Delete the folder of a pipeline that does not run, and its line in the list.

    With its checkpoint, settings and log. Tables, topics and offsets of its group stay as they
    are. A new pipeline of that name begins anew, and writes again what it reads again.
    """
    from moldau.client.errors import ClientError
    from moldau.spark.pipelines.home import Home, check_name
    from moldau.spark.pipelines.overview import overview, unknown
    from moldau.spark.pipelines.state import Board

    found = Home(Path(home) / check_name(name))
    check_stopped(found)
    bootstrap = brokers_of(found, brokers)
    known = overview(found.path.parent, bootstrap)
    record = known.records.get(name)
    if not found.exists and record is None:
        raise known.problem or unknown(name)
    if record is not None and record.is_alive():
        raise CommandError(
            f"pipeline {name} runs on {record.host}, as process {record.pid}; nothing was changed",
            hint="stop it there first",
        )
    if found.exists:
        say(f"{found.path} will be deleted, with checkpoint, settings and log")
    if known.problem is not None:
        say(f"the brokers cannot be told, and will still list it: {known.problem}")
    confirm(f"Delete {name}?", yes=yes)
    if found.exists:
        with found.held():
            _remove(found.path)
    if known.problem is None:
        try:
            with Board(bootstrap) as board:
                board.forget(name)
        except ClientError as error:
            raise CommandError(
                f"the folder of {name} is gone, but the brokers still list it: {error}",
                hint=f"once more: moldau pipeline delete {name}",
            ) from error
    click.echo(f"deleted {name}")
    say(f"the offsets of its group are deleted by: moldau group delete {name}")


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise CommandError(
            f"{error.filename or path} cannot be deleted: {error.strerror or error}",
            hint="what is left can be deleted by hand",
        ) from error
