"""Runs commands of `moldau` as processes, with nothing set by the environment of the tests."""

import os
import subprocess
import sys

from moldau.testing.waiting import wait_seconds_max


def run_moldau(*words: str) -> str:
    """What a command prints that succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "moldau", *words],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
