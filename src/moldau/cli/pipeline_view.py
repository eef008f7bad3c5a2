"""Owns `moldau pipeline list`, `status` and `logs`: what is known of pipelines, here and there."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.lazy import command
from moldau.cli.options import output_option, plain_brokers_option
from moldau.cli.output import emit_json, emit_rows, say
from moldau.cli.pipeline_common import (
    complete_pipelines,
    home_option,
)
from moldau.cli.signals import reader_gone

if TYPE_CHECKING:
    from moldau.spark.pipelines.record import Record

WATCH_SECONDS: Final = 1.0
_FOLLOW_SECONDS: Final = 0.2
_LINES_DEFAULT: Final = 200
_TAIL_BYTES_PER_LINE: Final = 4096


@command(
    "list",
    examples=(
        "moldau pipeline list",
        "moldau pipeline list -o json | jq '.[] | select(.state == \"failed\")'",
        "moldau pipeline list -b broker.example:9092",
    ),
)
@output_option
@home_option
@plain_brokers_option
def list_pipelines(output: str, home: str, brokers: str) -> None:
    """List pipelines: those that ran on this machine, and those that the brokers know of."""
    from moldau.spark.pipelines.overview import described

    records = _known(home, brokers)
    if output == "table":
        emit_rows([list_row(record) for record in records], output, name="name")
        if not records:
            say("there are no pipelines; start one: moldau pipeline start --help")
        return
    emit_rows([described(record) for record in records], output, name="name")


def list_row(record: "Record") -> dict[str, Any]:
    progress = record.progress
    rate = progress.rows_per_second
    is_alive = record.is_alive()
    return {
        "name": record.name,
        "kind": record.kind,
        "state": record.shown_state(),
        "rows": progress.rows,
        "rows/s": None if rate is None or not is_alive else round(rate),
        "lag": progress.lag,
        "batch_s": None if progress.batch_seconds is None else round(progress.batch_seconds, 2),
        "dead_letters": progress.dead_letters,
        "host": record.host,
        "updated": ago(record.updated_at),
    }


def _known(home: str, brokers: str) -> "list[Record]":
    """Raises what kept the brokers from being asked if there is nothing else to show."""
    from moldau.spark.pipelines.overview import overview

    found = overview(Path(home), brokers)
    if found.problem is not None:
        if not found.records:
            raise found.problem
        say(f"only those of this machine: {found.problem}")
    return list(found.records.values())


@command(
    "status",
    examples=(
        "moldau pipeline status",
        "moldau pipeline status archive-clicks --watch",
        "moldau pipeline status archive-clicks --json | jq .progress.lag",
    ),
)
@click.argument("name", required=False, shell_complete=complete_pipelines)
@click.option("-w", "--watch", is_flag=True, help="Every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON; watched, a line each.")
@home_option
@plain_brokers_option
def status(name: str | None, watch: bool, as_json: bool, home: str, brokers: str) -> int:
    """Show how far pipelines are: state, rows, speed, lag, dead letters, last error.

    The exit code is 1 if the pipeline that is named has failed or is lost.
    """
    records: Sequence[Record] = ()
    try:
        while True:
            records = _named(name, home, brokers)
            _show(records, is_one=name is not None, as_json=as_json, is_watched=watch)
            if not watch:
                break
            time.sleep(WATCH_SECONDS)
            if reader_gone():
                raise BrokenPipeError
    except KeyboardInterrupt:
        # The usual end of a watch.
        if not watch:
            raise
    is_bad = name is not None and any(
        record.shown_state() in ("failed", "lost") for record in records
    )
    return ExitCode.FAILED if is_bad else ExitCode.OK


def _named(name: str | None, home: str, brokers: str) -> "list[Record]":
    if name is None:
        return _known(home, brokers)
    from moldau.spark.pipelines.overview import find

    return [find(Path(home), brokers, name)]


def _show(records: "Sequence[Record]", *, is_one: bool, as_json: bool, is_watched: bool) -> None:
    from moldau.spark.pipelines.overview import described

    if as_json:
        documents = [described(record) for record in records]
        document: Any = documents[0] if is_one else documents
        if is_watched:
            import json

            click.echo(json.dumps(document, ensure_ascii=False))
        else:
            emit_json(document)
        return
    if is_watched:
        click.clear()
    for number, record in enumerate(records):
        if number:
            click.echo()
        for line in status_lines(record):
            click.echo(line)
    if not records:
        say("there are no pipelines")


def status_lines(record: "Record") -> list[str]:
    """One pipeline, for people."""
    from moldau.cli.pipeline_display import bar_text, rows_text
    from moldau.spark.pipelines.record import now_ms

    progress = record.progress
    state = record.shown_state()
    since = f" for {duration(now_ms() - record.started_at)}" if record.is_alive() else ""
    lines = [click.style(f"{record.name} ({record.kind}): {state}{since}", bold=True)]

    def fact(title: str, value: str) -> None:
        lines.append(f"  {title:<13} {value}")

    bar = bar_text(progress)
    fact("progress", f"{bar}  {rows_text(progress)}" if bar else rows_text(progress))
    if progress.rows_per_second is not None and record.is_alive():
        fact("speed", f"{progress.rows_per_second:,.0f} rows/s")
    if progress.lag is not None:
        fact("lag", f"{progress.lag:,}")
    if progress.batch is not None and progress.batch_seconds is not None:
        fact("last batch", f"number {progress.batch}, {progress.batch_seconds:.2f} s")
    fact("dead letters", f"{progress.dead_letters:,}")
    if progress.note and record.is_alive():
        fact("note", progress.note)
    fact("where", f"{record.host}, process {record.pid}")
    fact("home", record.home)
    fact("heard", ago(record.updated_at))
    if record.outcome is not None and record.outcome.summary:
        fact("outcome", record.outcome.summary.splitlines()[0])
    if state == "lost":
        fact("error", "it ended, or was cut off, without a word; its log may say why")
    if record.error:
        fact("error", record.error)
    if record.hint:
        fact("hint", record.hint)
    return lines


@command(
    "logs",
    examples=(
        "moldau pipeline logs archive-clicks",
        "moldau pipeline logs archive-clicks -f",
        "moldau pipeline logs archive-clicks -n 1000 | grep WARN",
    ),
)
@click.argument("name", shell_complete=complete_pipelines)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written next.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=_LINES_DEFAULT,
    show_default=True,
    help="How many of the last lines.",
)
@home_option
def logs(name: str, follow: bool, lines: int, home: str) -> None:
    """Print what a pipeline and Spark wrote to the log, on the machine where it runs."""
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.overview import unknown

    found = Home(Path(home) / name)
    if not found.log_file.exists():
        if found.exists:
            raise CommandError(f"pipeline {name} has no log yet", code=ExitCode.NOT_FOUND)
        raise unknown(name)
    with open(found.log_file, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - lines * _TAIL_BYTES_PER_LINE))
        last = file.read().splitlines(keepends=True)[-lines:] if lines else []
        click.echo(b"".join(last), nl=False)
        try:
            while follow:
                # Asked before it is read: what was written at the end is not missed.
                is_running = found.process() is not None
                if data := file.read():
                    click.echo(data, nl=False)
                elif not is_running:
                    break
                time.sleep(_FOLLOW_SECONDS)
                if reader_gone():
                    raise BrokenPipeError
        except KeyboardInterrupt:
            return


def ago(moment_ms: int) -> str:
    from moldau.spark.pipelines.record import now_ms

    return f"{duration(now_ms() - moment_ms)} ago"


def duration(milliseconds: int) -> str:
    """The two largest units: 3d 4h, 2m 5s."""
    seconds = max(0, milliseconds // 1000)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
