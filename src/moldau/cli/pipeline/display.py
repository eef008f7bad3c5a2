"""Shows a running pipeline: a progress bar on a terminal, else a line every few seconds."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from moldau.cli.output import color_wanted

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import Progress
    from moldau.spark.pipelines.status import PipelineStatus

LINE_SECONDS: Final = 10.0
BAR_CHARACTERS: Final = 30
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def facts(progress: "Progress") -> str:
    """Progress and speed, in one line."""
    parts = [rows_text(progress)]
    if progress.rows_per_second is not None:
        parts.append(f"{progress.rows_per_second:,.0f} rows/s")
    if progress.lag is not None:
        parts.append(f"lag {progress.lag:,}")
    if progress.batch_seconds is not None:
        parts.append(f"batch {progress.batch_seconds:.1f} s")
    parts.append(f"{progress.dead_letters:,} dead letter{'s' * (progress.dead_letters != 1)}")
    if progress.note:
        parts.append(progress.note)
    return " · ".join(parts)


def rows_text(progress: "Progress") -> str:
    if progress.rows_total is not None and progress.rows_total > progress.rows:
        return f"{progress.rows:,} of {progress.rows_total:,} rows"
    return f"{progress.rows:,} rows"


def bar_text(progress: "Progress") -> str | None:
    """A bar of plain characters; None if the total is unknown."""
    total = progress.rows_total
    if total is None and progress.lag is not None:
        total = progress.rows + progress.lag
    if not total:
        return None
    share = min(1.0, progress.rows / total)
    full = round(share * BAR_CHARACTERS)
    return f"[{'#' * full}{'-' * (BAR_CHARACTERS - full)}] {share:4.0%}"


class Display:
    """Shows the records of one pipeline, as its `Watcher`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream = stream or sys.stderr
        self._shown_at = 0.0
        self.state: str | None = None
        self._bar: Any = None
        self._task: Any = None
        if stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            console = Console(file=stream, no_color=not color_wanted(err=True))
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(BAR_CHARACTERS),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> "Display":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: "PipelineStatus") -> None:
        progress = record.progress
        is_new = record.state != self.state
        self.state = record.state
        if self._bar is not None:
            self._draw(record)
            return
        now = time.monotonic()
        if not is_new and now - self._shown_at < LINE_SECONDS:
            return
        self._shown_at = now
        if record.state not in ("starting", "running"):
            # The last note and speed are outdated.
            progress = replace(progress, note="", rows_per_second=None, batch_seconds=None)
        details = f": {facts(progress)}" if progress.rows or progress.batch is not None else ""
        print(f"{record.name} {record.state}{details}", file=self._stream, flush=True)

    def _draw(self, record: "PipelineStatus") -> None:
        progress = record.progress
        if self._task is None:
            self._task = self._bar.add_task(record.name, total=None, facts="")
        shown = facts(progress) if progress.batch is not None or progress.rows else record.state
        self._bar.update(
            self._task, total=progress.rows_total, completed=progress.rows, facts=shown
        )


@contextmanager
def logged(*, is_verbose: bool = False) -> Iterator[None]:
    """Within the block, log to standard error, as Spark does."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    # Py4J logs every call between Python and Java.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name[:4] != "py4j")
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if is_verbose else logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
