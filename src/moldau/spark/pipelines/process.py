"""Owns pipelines in processes of their own: started, waited for, stopped; and what runs in them.

A started process leads a session of its own, so that it outlives the terminal, and so that it can
be ended with all that it started. Its settings come through a pipe: secrets in them are in no file
and in no list of processes.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from moldau.client.errors import ClientError, TimedOutError
from moldau.client.processes import ProcessKey, is_running, send_signal, wait_gone
from moldau.model.errors import MoldauError
from moldau.spark.pipelines.declared import from_plain, to_plain
from moldau.spark.pipelines.failures import PipelineError
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.record import Record
from moldau.spark.pipelines.running import execute
from moldau.spark.pipelines.spec import Settings, State

START_SECONDS_MAX: Final = 180.0
STOP_SECONDS_MAX: Final = 120.0
_KILL_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.05
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FORCE: Final = "--force"
_LOG_TAIL_BYTES: Final = 4096


def start(
    settings: Settings, *, force: bool = False, seconds_max: float = START_SECONDS_MAX
) -> Record:
    """Start a pipeline in the background; returns once it is running, or done already.

    Raises BusyError, PipelineError with what it failed with, and TimedOutError if it still starts.
    """
    home = Home(Path(settings.home))
    home.check_idle()
    home.create()
    command = [sys.executable, "-P", "-m", "moldau.spark.pipelines.process"]
    with open_log(home) as log_file:
        log_start = log_file.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            [*command, *((_FORCE,) if force else ())],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    _hand_over(child, msgspec.json.encode(to_plain(settings)))
    deadline = time.monotonic() + seconds_max
    while True:
        ended = child.poll() is not None
        record = home.read_state()
        if record is not None and record.pid == child.pid:
            if record.state in (State.RUNNING, State.FINISHED, State.STOPPED):
                return record
            if record.state is State.FAILED and ended:
                raise _failed(record, home)
        if ended:
            raise _failed_early(child.returncode, home, log_start)
        if time.monotonic() >= deadline:
            raise TimedOutError(
                f"pipeline {settings.name} is still starting after {seconds_max:g} s",
                hint=f"it goes on: moldau pipeline status {settings.name} · log: {home.log_file}",
            )
        time.sleep(_POLL_SECONDS)


def open_log(home: Home) -> FileIO:
    """The pipeline's log, to be written at its end."""
    home.create()
    descriptor = os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return FileIO(descriptor, "ab")


def _hand_over(child: "subprocess.Popen[bytes]", data: bytes) -> None:
    if child.stdin is None:
        return
    try:
        with child.stdin:
            child.stdin.write(data)
    except BrokenPipeError:
        # It ended before it read them; why stands in its log.
        return


def _failed(record: Record, home: Home) -> PipelineError:
    hint = f"{record.hint} · " if record.hint else ""
    return PipelineError(
        f"pipeline {record.name} failed: {record.error}", hint=f"{hint}log: {home.log_file}"
    )


def _failed_early(code: int, home: Home, log_start: int) -> PipelineError:
    """It ended before it could say anything anywhere but in its log."""
    with open(home.log_file, "rb") as file:
        file.seek(max(log_start, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    said = [line for line in lines if line.strip()]
    why = ""
    for line in reversed(said):
        if line.startswith("error: "):
            why = line.removeprefix("error: ")
            break
    why = why or (said[-1] if said else "without a word")
    return PipelineError(
        f"pipeline {home.name} ended at its start with code {code}: {why}",
        hint=f"log: {home.log_file}",
    )


def stop(home: Home, *, seconds_max: float = STOP_SECONDS_MAX) -> bool:
    """Have the pipeline that runs here end in order; False if none runs. Raises TimedOutError."""
    key = home.process()
    if key is None or not send_signal(key, signal.SIGTERM):
        return False
    if not wait_gone(key, seconds_max):
        raise TimedOutError(
            f"pipeline {home.name} has not stopped within {seconds_max:g} s",
            hint=f"wait for longer: --timeout · end it in the middle of a batch, which is then "
            f"done again: moldau pipeline stop {home.name} --kill",
        )
    return True


def kill(home: Home) -> bool:
    """End it at once, with all that it started; False if none runs here."""
    key = home.process()
    if key is None:
        return False
    _kill_group(key)
    send_signal(key, signal.SIGKILL)
    if not wait_gone(key, _KILL_SECONDS_MAX):
        raise ClientError(f"process {key.pid} of pipeline {home.name} does not end")
    record = home.read_state()
    if record is not None and record.pid == key.pid:
        home.write_state(record.changed(state=State.STOPPED, error="killed"))
    return True


def _kill_group(key: ProcessKey) -> None:
    """Spark's Java runs in the same group, if the process leads one; others' groups are theirs."""
    try:
        if os.getpgid(key.pid) == key.pid and is_running(key):
            os.killpg(key.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> int:
    """Run the pipeline whose settings come from stdin."""
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    # It tells of every call between Python and Java.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    data = sys.stdin.buffer.read()
    try:
        settings = from_plain(msgspec.json.decode(data))
        outcome = execute(settings, force=_FORCE in sys.argv[1:])
    except MoldauError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if error.hint:
            print(f"hint:  {error.hint}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    if outcome.summary:
        print(outcome.summary, flush=True)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
