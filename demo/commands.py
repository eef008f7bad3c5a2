"""The commands that the demo runs: shown as a user would type them, bounded in time."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO


class FailedError(Exception):
    """A command of the demo did not succeed; `said` is what it printed."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class Moldau:
    """Runs `moldau …` with the environment of the demo."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}

    def begin(self, *arguments: str, output: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
        """Start a command, and show it."""
        print(f"      $ moldau {' '.join(map(_quoted, arguments))}", flush=True)
        return self._started(arguments, output)

    def _started(
        self, arguments: Sequence[str], output: IO[bytes] | None
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "moldau", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.STDOUT,
        )

    def run(self, *arguments: str, seconds_max: float = 120.0) -> str:
        """What it printed. Raises FailedError."""
        return finished(self.begin(*arguments), arguments, seconds_max)

    def quietly(self, *arguments: str, seconds_max: float = 60.0) -> int:
        """For cleaning up: the exit code, whatever it is; -1 if it took too long."""
        process = self._started(arguments, None)
        try:
            process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return -1
        return process.returncode


def end(process: "subprocess.Popen[bytes]", *, seconds_max: float) -> int:
    """Have a process end in order, by force if it takes too long; its exit code."""
    process.terminate()
    try:
        return process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _quoted(word: str) -> str:
    """As people quote: SQL has quotes of its own."""
    if "'" in word and not set(word) & set('"$`\\'):
        return f'"{word}"'
    return shlex.quote(word)


def finished(
    process: "subprocess.Popen[bytes]", arguments: Sequence[str], seconds_max: float
) -> str:
    """Wait for a command. Raises FailedError if it fails, or takes too long."""
    began = time.monotonic()
    try:
        said, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        raise FailedError(
            f"moldau {shlex.join(arguments)} took longer than {seconds_max:g} s",
            (said or b"").decode(errors="replace"),
        ) from None
    text = (said or b"").decode(errors="replace")
    if process.returncode:
        raise FailedError(
            f"moldau {shlex.join(arguments)} ended with code {process.returncode} after "
            f"{time.monotonic() - began:.0f} s",
            text,
        )
    return text
