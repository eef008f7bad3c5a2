"""Owns `moldau pipeline list` and `status`: what pipelines said of themselves to the brokers."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import ExitCode
from moldau.cli.options import output_option, plain_brokers_option
from moldau.cli.output import emit_json, emit_rows, say
from moldau.cli.pipeline.run_options import complete_pipelines, unknown_pipeline
from moldau.cli.signals import reader_gone

if TYPE_CHECKING:
    from moldau.spark.pipelines.status import Record

WATCH_SECONDS: Final = 1.0
_LOOK_SECONDS_MAX: Final = 3.0


@command(
    "list",
    examples=(
        "moldau pipeline list",
        "moldau pipeline list -o json | jq '.[] | select(.state == \"failed\")'",
        "moldau pipeline list -b broker.example:9092",
    ),
)
@output_option
@plain_brokers_option
def list_pipelines(output: str, brokers: str) -> None:
    """List the pipelines that the brokers know of."""
    records = _known(brokers)
    rows = [list_row(each) if output == "table" else each.described() for each in records]
    emit_rows(rows, output, name="name")
    if not records:
        say("there are no pipelines; run one: moldau pipeline run --help")


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


def _known(brokers: str) -> "list[Record]":
    from moldau.spark.pipelines.status import StatusTopic

    with StatusTopic(brokers, seconds_max=_LOOK_SECONDS_MAX) as board:
        return [record for _, record in sorted(board.read().items())]


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
@plain_brokers_option
def status(name: str | None, watch: bool, as_json: bool, brokers: str) -> int:
    """Show how far pipelines are: state, rows, speed, lag, dead letters, last error.

    The exit code is 1 if the pipeline that is named has failed or is lost.
    """
    records: Sequence[Record] = ()
    try:
        while True:
            records = _named(name, brokers)
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


def _named(name: str | None, brokers: str) -> "list[Record]":
    found = [record for record in _known(brokers) if name in (None, record.name)]
    if name is not None and not found:
        raise unknown_pipeline(name)
    return found


def _show(records: "Sequence[Record]", *, is_one: bool, as_json: bool, is_watched: bool) -> None:
    if as_json:
        documents = [record.described() for record in records]
        document: Any = documents[0] if is_one else documents
        if is_watched:
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
    from moldau.cli.pipeline.display import bar_text, rows_text
    from moldau.spark.pipelines.status import now_ms

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
        fact("error", "it ended, or was cut off, without a word; what it logged may say why")
    if record.error:
        fact("error", record.error)
    if record.hint:
        fact("hint", record.hint)
    return lines


def ago(moment_ms: int) -> str:
    from moldau.spark.pipelines.status import now_ms

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
