"""`moldau pipeline list` and `status`: the records that pipelines publish on the brokers."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_security
from moldau.cli.errors import ExitCode
from moldau.cli.options import output_option, plain_brokers_option
from moldau.cli.output import emit_document, emit_json, emit_rows, say
from moldau.cli.pipeline.run_options import complete_pipelines, unknown_pipeline
from moldau.cli.signals import output_closed

if TYPE_CHECKING:
    from moldau.spark.pipelines.status import PipelineStatus

WATCH_SECONDS: Final = 1.0
_READ_SECONDS_MAX: Final = 3.0


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
    """List pipelines."""
    records = _known(brokers)
    rows = [list_row(each) if output == "table" else each.described() for each in records]
    emit_rows(rows, output, name="name")
    if not records:
        say("no pipelines; run one: moldau pipeline run --help")


def list_row(record: "PipelineStatus") -> dict[str, Any]:
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


def _known(brokers: str) -> "list[PipelineStatus]":
    from moldau.spark.pipelines.status import StatusTopic

    with StatusTopic(brokers, seconds_max=_READ_SECONDS_MAX, security=current_security()) as board:
        return [record for _, record in sorted(board.read().items())]


@command(
    "status",
    examples=(
        "moldau pipeline status",
        "moldau pipeline status archive-clicks --watch",
        "moldau pipeline status archive-clicks -o json | jq .progress.lag",
    ),
)
@click.argument("name", required=False, shell_complete=complete_pipelines)
@click.option("-w", "--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@output_option
@plain_brokers_option
def status(name: str | None, watch: bool, output: str, brokers: str) -> int:
    """Show state, rows, speed, lag, dead letters and the last error of pipelines.

    With a name, exits with 1 if that pipeline has failed or is lost.
    """
    records: Sequence[PipelineStatus] = ()
    try:
        while True:
            records = _named(name, brokers)
            _show(records, output, is_one=name is not None, is_watched=watch)
            if not watch:
                break
            time.sleep(WATCH_SECONDS)
            if output_closed():
                raise BrokenPipeError
    except KeyboardInterrupt:
        # The normal end of --watch.
        if not watch:
            raise
    is_bad = name is not None and any(
        record.shown_state() in ("failed", "lost") for record in records
    )
    return ExitCode.FAILED if is_bad else ExitCode.OK


def _named(name: str | None, brokers: str) -> "list[PipelineStatus]":
    found = [record for record in _known(brokers) if name in (None, record.name)]
    if name is not None and not found:
        raise unknown_pipeline(name)
    return found


def _show(
    records: "Sequence[PipelineStatus]", output: str, *, is_one: bool, is_watched: bool
) -> None:
    if output != "table":
        documents = [record.described() for record in records]
        if is_one:
            emit_document(documents[0], output, name="name", is_stream=is_watched)
        elif is_watched and output == "json":
            emit_json(documents, indent=None)
        else:
            emit_rows(documents, output, name="name")
        return
    if is_watched:
        click.clear()
    for number, record in enumerate(records):
        if number:
            click.echo()
        for line in status_lines(record):
            click.echo(line)
    if not records:
        say("no pipelines")


def status_lines(record: "PipelineStatus") -> list[str]:
    """One pipeline as text."""
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
    fact("host", f"{record.host}, pid {record.pid}")
    fact("home", record.home)
    fact("updated", ago(record.updated_at))
    if record.outcome is not None and record.outcome.summary:
        fact("outcome", record.outcome.summary.splitlines()[0])
    if state == "lost":
        fact("error", "no heartbeat: it was killed or cannot reach the brokers; see its log")
    if record.error:
        fact("error", record.error)
    if record.hint:
        fact("hint", record.hint)
    return lines


def ago(timestamp_ms: int) -> str:
    from moldau.spark.pipelines.status import now_ms

    return f"{duration(now_ms() - timestamp_ms)} ago"


def duration(milliseconds: int) -> str:
    """The two largest units: 3d 4h, 2m 5s."""
    seconds = max(0, milliseconds // 1000)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
