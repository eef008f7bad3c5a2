"""Owns how a process is known again after its number was written down: by the time it started.

Numbers of processes are used again. Before a signal goes to one that another process started, the
time of its start is compared, so that a stranger is never hit.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

_PS_SECONDS_MAX = 10.0
_POLL_SECONDS = 0.05


class ProcessKey(NamedTuple):
    """A process that cannot be mistaken for another one."""

    pid: int
    started: str
    """Opaque; as `started_at` gave it."""


def process_key(pid: int) -> ProcessKey | None:
    """The key of a running process; None if there is none of that number."""
    started = started_at(pid)
    return None if started is None else ProcessKey(pid, started)


def started_at(pid: int) -> str | None:
    """When a process was started; None if it does not run (any more)."""
    return _from_proc(pid) if sys.platform == "linux" else _from_ps(pid)


def _from_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # The name of the program stands in brackets and may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    # Ticks since the machine was booted, so the boot belongs to it.
    return f"{boot}:{fields[19]}"


def _from_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        timeout=_PS_SECONDS_MAX,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    return done.stdout.strip() or None


def is_running(key: ProcessKey | None) -> bool:
    """True while exactly this process runs."""
    return key is not None and started_at(key.pid) == key.started


def send_signal(key: ProcessKey, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False if it is gone."""
    if not hasattr(os, "pidfd_open"):
        if not is_running(key):
            return False
        os.kill(key.pid, number)
        return True
    try:
        # The descriptor stays with the process: its number cannot change hands after the check.
        descriptor = os.pidfd_open(key.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_running(key):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_until_ended(key: ProcessKey, seconds_max: float) -> bool:
    """Wait until a process has ended; False if it still runs then."""
    deadline = time.monotonic() + seconds_max
    while is_running(key):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
