"""Owns `moldau pipeline stop` and `reset`: what changes a pipeline that is there already."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.lazy import command
from moldau.cli.options import Duration, output_option, plain_brokers_option, yes_option
from moldau.cli.output import confirm, counted, emit_rows, say
from moldau.cli.pipeline_common import (
    complete_pipelines,
    home_option,
)

if TYPE_CHECKING:
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.moving import Move, Target


@command(
    "stop",
    examples=(
        "moldau pipeline stop archive-clicks",
        "moldau pipeline stop archive-clicks --timeout 10m",
        "moldau pipeline stop archive-clicks --kill",
    ),
)
@click.argument("name", shell_complete=complete_pipelines)
@click.option(
    "--timeout",
    "seconds_max",
    type=Duration(),
    default=120.0,
    metavar="TIME",
    help="How long the batch at hand may take to its end. [default: 120s]",
)
@click.option("--kill", is_flag=True, help="At once, in the middle of a batch.")
@home_option
@plain_brokers_option
def stop(name: str, seconds_max: float, kill: bool, home: str, brokers: str) -> None:
    """Stop a pipeline that runs on this machine, in order. It goes on where it was when started."""
    from moldau.spark.pipelines import process
    from moldau.spark.pipelines.home import Home

    found = Home(Path(home) / name)
    if found.process() is None:
        _say_why_not(found, brokers)
        return
    if kill:
        was_running = process.kill(found)
        if was_running:
            _publish_end(found, brokers_of(found, brokers))
            say("the batch at hand is done again when it is started the next time")
    else:
        say(f"stopping {name} after the batch at hand")
        was_running = process.stop(found, seconds_max=seconds_max)
    if was_running:
        click.echo(f"stopped {name}")
        return
    _say_why_not(found, brokers)


def _say_why_not(home: "Home", brokers: str) -> None:
    """It does not run here: elsewhere, not at all, or there is none."""
    from moldau.spark.pipelines.overview import find

    record = find(home.path.parent, brokers_of(home, brokers), home.name)
    if record.is_alive() and not record.is_here:
        raise CommandError(
            f"pipeline {home.name} runs on {record.host}, as process {record.pid}",
            hint="stop it there",
        )
    if record.is_alive():
        raise CommandError(
            f"pipeline {home.name} runs from another folder, {record.home}",
            hint=f"moldau pipeline stop {home.name} --home {Path(record.home).parent}",
        )
    say(f"{home.name} is not running: {record.shown_state()}")


def _publish_end(home: "Home", brokers: str) -> None:
    """A killed process cannot say that it ended."""
    from moldau.client.errors import ClientError
    from moldau.spark.pipelines.state import Board

    record = home.read_state()
    if record is None:
        return
    try:
        with Board(brokers) as board:
            board.publish(record)
    except ClientError as error:
        say(f"the brokers were not told: {error}")


def brokers_of(home: "Home", given: str) -> str:
    """Those of the command line, or those that the pipeline used if none were given."""
    source = click.get_current_context().get_parameter_source("brokers")
    if source is click.core.ParameterSource.DEFAULT:
        return str(home.read_spec().get("bootstrap") or given)
    return given


@command(
    "reset",
    examples=(
        "moldau pipeline reset archive-clicks --to earliest --dry-run",
        "moldau pipeline reset archive-clicks --to 2026-11-15T08:00",
        "moldau pipeline reset archive-clicks --to clicks:0=4711 --to clicks:1=4690 -y",
    ),
)
@click.argument("name", shell_complete=complete_pipelines)
@click.option(
    "--to",
    "positions",
    multiple=True,
    required=True,
    metavar="POSITION",
    help="earliest, latest, a time (2026-01-31T12:00 or @-10m), or TOPIC:PARTITION=OFFSET, which "
    "may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@output_option
@home_option
@plain_brokers_option
def reset(
    name: str,
    positions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    home: str,
    brokers: str,
) -> None:
    """Make a pipeline that does not run begin somewhere else. Shows the change first.

    The checkpoint is moved aside, not deleted. What was written before stays.
    """
    from moldau.client.kafka.client import KafkaClient
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.moving import apply_moves, planned_moves
    from moldau.spark.pipelines.overview import unknown

    target = parse_target(positions)
    found = Home(Path(home) / name)
    if not found.exists:
        raise unknown(name)
    check_stopped(found)
    _check_has_position(found)
    bootstrap = brokers_of(found, brokers)
    with KafkaClient(bootstrap) as client:
        moves = planned_moves(client, found, target)
    check_not_elsewhere(name, bootstrap)
    emit_rows([_row(move) for move in moves], output, name="topic")
    for line in consequences(moves):
        say(line)
    if dry_run:
        say("nothing was changed")
        return
    confirm(f"Reset {name}?", yes=yes)
    old = apply_moves(found, moves)
    say(f"reset {name}: {counted(len(moves), 'partition')}; it begins there when it is run again")
    if old is not None:
        say(f"its old checkpoint is in {old}")


def parse_target(positions: Sequence[str]) -> "Target":
    """Raises CommandError for what is no position."""
    from moldau.cli.positions import parse_position
    from moldau.client.kafka.client import OFFSET_EARLIEST, OFFSET_LATEST
    from moldau.spark.pipelines.moving import Target, parse_offset

    offsets = dict(found for text in positions if (found := parse_offset(text)) is not None)
    others = [text for text in positions if parse_offset(text) is None]
    if offsets and not others:
        return Target(None, offsets)
    words = {
        "earliest": OFFSET_EARLIEST,
        "beginning": OFFSET_EARLIEST,
        "latest": OFFSET_LATEST,
        "end": OFFSET_LATEST,
    }
    if len(others) == 1 and not offsets:
        text = others[0].strip()
        if text in words:
            return Target(words[text], {})
        position = parse_position("@" + text.removeprefix("@"))
        if position is not None and position.time_ms is not None:
            return Target(position.time_ms, {})
    raise CommandError(
        f"{' '.join(others)!r} is none of: earliest, latest, a time, TOPIC:PARTITION=OFFSET",
        hint="one position for all, or offsets of partitions: --to clicks:0=10 --to clicks:1=12",
        code=ExitCode.USAGE,
    )


def _row(move: "Move") -> dict[str, Any]:
    change = None if move.before is None else move.after - move.before
    return {
        "topic": move.place.topic,
        "partition": move.place.partition,
        "now": move.before,
        "new": move.after,
        "change": change,
    }


def consequences(moves: "Sequence[Move]") -> list[str]:
    """What exactly once means after it."""
    changes = [move.after - move.before for move in moves if move.before is not None]
    again = -sum(change for change in changes if change < 0)
    left_out = sum(change for change in changes if change > 0)
    lines = []
    if again:
        lines.append(
            f"{counted(again, 'record')} will be read again, and written once more beside what is "
            "there: exactly once holds within a checkpoint. `moldau pipeline run compact` drops "
            "such duplicates from a table by topic, partition and offset; a topic keeps both"
        )
    if left_out:
        lines.append(f"{counted(left_out, 'record')} will never be read by this pipeline")
    return lines


def _check_has_position(home: "Home") -> None:
    """A kind that always ends by itself begins at what its options say, each time."""
    from moldau.cli.pipeline_kinds import command_module
    from moldau.spark.pipelines.registry import kinds

    kind = kinds().get(str(home.read_spec().get("kind")))
    if kind is None or kind.command is None:
        return
    if not getattr(command_module(kind.command), "CONTINUOUS", True):
        raise CommandError(
            f"pipeline {home.name} has no position to reset: {kind.name} begins where its options "
            "say",
            hint=f"run it with another --name, or anew after: moldau pipeline delete {home.name}",
        )


def check_stopped(home: "Home") -> None:
    """Raises CommandError while it runs here."""
    if (key := home.process()) is not None:
        raise CommandError(
            f"pipeline {home.name} is running, as process {key.pid}; nothing was changed",
            hint=f"stop it first: moldau pipeline stop {home.name}",
        )


def check_not_elsewhere(name: str, bootstrap: str) -> None:
    """Raises CommandError while it runs on another machine, or if brokers cannot be asked."""
    from moldau.client.errors import ClientError
    from moldau.spark.pipelines.state import Board

    try:
        with Board(bootstrap) as board:
            record = board.read().get(name)
    except ClientError as error:
        raise CommandError(
            f"nobody knows whether {name} runs somewhere else: {error}; nothing was changed"
        ) from error
    if record is not None and record.is_alive():
        raise CommandError(
            f"pipeline {name} runs on {record.host}, as process {record.pid}",
            hint="stop it first",
        )
