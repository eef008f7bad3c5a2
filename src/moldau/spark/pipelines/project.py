"""Owns projects of Spark Declarative Pipelines: made, run and looked at before a run.

Spark's own `spark-pipelines` has no lasting catalog unless it is configured, so that its second run
fails, and all runs of a machine share one port. Here each run has a Connect server of its own on
this machine (`project_run`), with a catalog in the project's folder, or asks one that is named.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from moldau.client.errors import InvalidArgumentError
from moldau.spark.java import find_java
from moldau.spark.pipelines.project_template import OWN_FOLDER, SPEC_NAME, files
from moldau.spark.sessions import LOCAL, check_connect, check_installed, check_master

_SPEC_NAMES = (SPEC_NAME, "spark-pipeline.yaml")
_END_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.2


def init(folder: Path, *, bootstrap: str, source: str, target: str) -> list[Path]:
    """Write a project that reads the topic `source` and writes `target`; the files written."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgumentError(
            f"{folder} is there already, and not empty", hint="name a folder that does not exist"
        )
    if source == target:
        raise InvalidArgumentError(
            f"{source} cannot be both source and target: it would never end",
            hint="name another topic to write to",
        )
    texts = files(
        name=folder.name,
        storage=(folder / OWN_FOLDER / "storage").as_uri(),
        bootstrap=bootstrap,
        source=source,
        target=target,
    )
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def run(
    folder: Path,
    *,
    full_refresh: bool = False,
    master: str = LOCAL,
    on_line: Callable[[str], None] = print,
    is_stopping: Callable[[], bool] | None = None,
) -> int:
    """Run a project until it has done what is there; returns its exit code.

    What Spark says comes to `on_line`. `master` may be a Connect server, whose catalog and Python
    are then its own. It is ended once `is_stopping` says so.
    """
    arguments = ("run", "--full-refresh-all") if full_refresh else ("run",)
    return _call(folder, arguments, master, on_line, is_stopping)


def dry_run(folder: Path, *, master: str = LOCAL, on_line: Callable[[str], None] = print) -> int:
    """Check a project without reading or writing a message; returns the exit code."""
    return _call(folder, ("dry-run",), master, on_line)


def spec_of(folder: Path) -> Path:
    """The file that declares the project."""
    found = [path for name in _SPEC_NAMES if (path := folder.absolute() / name).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidArgumentError(
            f"{folder} has two files that declare a project: {' and '.join(_SPEC_NAMES)}",
            hint="keep one of them",
        )
    raise InvalidArgumentError(
        f"{folder} is no project: it has no {SPEC_NAME}", hint="make one: moldau pipeline init"
    )


def _call(
    folder: Path,
    arguments: tuple[str, ...],
    master: str,
    on_line: Callable[[str], None],
    is_stopping: Callable[[], bool] | None = None,
) -> int:
    spec = spec_of(folder)
    check_master(master)
    check_installed()
    check_connect()
    if not master.startswith("sc://"):
        find_java()  # Said here, where it is an error and not a line of a log.
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "moldau.spark.pipelines.project_run"),
            *(master, str(spec)),
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    if is_stopping is not None:
        threading.Thread(target=_stop_when, args=(child, is_stopping), daemon=True).start()
    try:
        if child.stdout is not None:
            with child.stdout:
                for line in child.stdout:
                    on_line(line.rstrip("\n"))
        return child.wait()
    finally:
        _end(child)


def _stop_when(child: "subprocess.Popen[str]", is_stopping: Callable[[], bool]) -> None:
    """Told to stop while nothing is said: the reader of its lines would not notice."""
    while child.poll() is None:
        if is_stopping():
            child.terminate()
            return
        time.sleep(_POLL_SECONDS)


def _end(child: "subprocess.Popen[str]") -> None:
    """No run outlives who waits for it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(number)
        try:
            child.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            continue
