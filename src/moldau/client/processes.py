"""Identifies a process by its pid and start time.

Pids are reused. Before a signal is sent to a process that another one started, its start time is
compared, so that no unrelated process is signalled.
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
    """Identifies one process, even if its pid is reused."""

    pid: int
    started: str
    """Opaque; a value of `started_at`."""


def started_at(pid: int) -> str | None:
    """When a process was started; None if it does not run."""
    return _from_proc(pid) if sys.platform == "linux" else _from_ps(pid)


def _from_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # The name of the program is in brackets and may contain anything, brackets too.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    # Ticks since boot, so the boot id is part of the key.
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
    """Send a signal to exactly this process; False if it has ended."""
    if not hasattr(os, "pidfd_open"):
        if not is_running(key):
            return False
        os.kill(key.pid, number)
        return True
    try:
        # The descriptor refers to the process, so the pid cannot be reused after the check.
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
