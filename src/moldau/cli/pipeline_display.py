"""Owns how a running pipeline looks: a bar on a terminal, a line now and then elsewhere.

While a pipeline runs in the foreground, what Spark and its Java print goes to the pipeline's log:
`quieted` gives the display the real standard error.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from moldau.cli.output import color_wanted

if TYPE_CHECKING:
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.record import Record
    from moldau.spark.pipelines.spec import Progress

LINE_SECONDS: Final = 10.0
BAR_CHARACTERS: Final = 30
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def facts(progress: "Progress") -> str:
    """How far and how fast, on one line."""
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
    """A bar of plain characters; None if nobody knows how much there is to do."""
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

    def __init__(self, stream: TextIO, *, is_plain: bool = False) -> None:
        self._stream = stream
        self._shown_at = 0.0
        self._state: str | None = None
        self._bar: Any = None
        self._task: Any = None
        if stream.isatty() and not is_plain:
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

    def __call__(self, record: "Record") -> None:
        progress = record.progress
        if self._bar is not None:
            self._draw(record)
            return
        is_new = record.state != self._state
        now = time.monotonic()
        if not is_new and now - self._shown_at < LINE_SECONDS:
            return
        self._state, self._shown_at = record.state, now
        if record.state not in ("starting", "running"):
            # What it was doing at last, and how fast, says nothing any more.
            progress = replace(progress, note="", rows_per_second=None, batch_seconds=None)
        told = f": {facts(progress)}" if progress.rows or progress.batch is not None else ""
        print(f"{record.name} {record.state}{told}", file=self._stream, flush=True)

    def _draw(self, record: "Record") -> None:
        progress = record.progress
        if self._task is None:
            self._task = self._bar.add_task(record.name, total=None, facts="")
        shown = facts(progress) if progress.batch is not None or progress.rows else record.state
        self._bar.update(
            self._task, total=progress.rows_total, completed=progress.rows, facts=shown
        )


@contextmanager
def quieted(home: "Home", *, is_verbose: bool) -> Iterator[TextIO]:
    """Within, file 2 is the pipeline's log; yields what standard error was before.

    Not only Python writes there: Spark's Java inherits it.
    """
    from moldau.spark.pipelines.process import open_log

    if is_verbose:
        with logged():
            yield sys.stderr
        return
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open_log(home) as log_file:
            os.dup2(log_file.fileno(), 2)
        with os.fdopen(os.dup(saved), "w", buffering=1) as stream, logged():
            yield stream
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def logged() -> Iterator[None]:
    """Within, what the library logs goes to file 2."""
    handler = logging.StreamHandler(os.fdopen(os.dup(2), "w", buffering=1))
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    root = logging.getLogger()
    level = root.level
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name[:4] != "py4j")
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO) if level else logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
        handler.stream.close()
