"""Owns the ways the tests run `moldau backup` and other commands: in a process, as users do."""

import subprocess
import sys

from moldau.testing.waiting import wait_seconds_max


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", *words],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def succeeding(*words: str) -> str:
    """What a command reports that succeeds."""
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def failing(*words: str) -> str:
    """The errors of a command that fails."""
    done = run(*words)
    assert done.returncode not in (0, 2), done.stdout
    return done.stderr
