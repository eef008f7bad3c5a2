"""Commands as the first process of a container: in a PID namespace, as engines make one."""

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PROGRAM = """
import os, subprocess, signal, sys, time
from moldau.cli.first_process import leave_to_child
leave_to_child()
"""


def is_allowed() -> bool:
    return shutil.which(NAMESPACE[0]) is not None and not subprocess.call(
        [*NAMESPACE, "true"], stderr=subprocess.DEVNULL
    )


pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_allowed(), reason="no PID namespace: that needs unshare and root"),
]

BY_SIGTERM = 128 + signal.SIGTERM


class First:
    """A command that is PID 1."""

    def __init__(self, outside: subprocess.Popen[bytes]) -> None:
        self._outside = outside

    @property
    def output(self) -> IO[bytes]:
        assert self._outside.stdout is not None
        return self._outside.stdout

    def end(self) -> int:
        """By SIGTERM; returns the exit code."""
        os.kill(child_of(self._outside.pid), signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self._outside.wait(wait_seconds_max())

    def wait_until_begun(self) -> None:
        """Until it has a child: much is not imported yet."""

        def holds() -> bool:
            first = child_of(self._outside.pid)
            return bool(child_of(first))

        wait_until(holds, "the first process has a child", ignoring=(OSError, ValueError))


def child_of(process: int) -> int:
    (found,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(found)


@contextmanager
def first(*command: str, **settings: Any) -> Iterator[First]:
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, *command], stdout=subprocess.PIPE, **settings
    ) as outside:
        try:
            yield First(outside)
        finally:
            outside.kill()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("backup", "create", "backups", "--http"), BY_SIGTERM),
        (("broker", "list", "--http"), BY_SIGTERM),
        (("consume", "orders", "-b"), BY_SIGTERM),
        (("proxy", "--listen", "127.0.0.1:0", "-b"), 0),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_sigterm_ends_a_command_that_waits_for_a_silent_broker(
    words: tuple[str, ...], expected: int, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with first("-m", "moldau", *words, address, cwd=tmp_path) as command:
            _held = server.accept()
            assert command.end() == expected


def broker(folder: Path) -> tuple[str, ...]:
    ports = free_ports(4)
    names = zip(("kafka", "raft", "http", "grpc"), ports, strict=True)
    addresses = [f"--{name}-addr=127.0.0.1:{port}" for name, port in names]
    return ("-m", "moldau", "broker", "start", "--bootstrap", f"--data-dir={folder}", *addresses)


def test_sigterm_ends_a_broker_while_it_begins_and_when_it_serves(tmp_path: Path) -> None:
    with first(*broker(tmp_path)) as command:
        command.wait_until_begun()
        assert command.end() == BY_SIGTERM
    with first(*broker(tmp_path)) as command:
        wait_until(lambda: b"ready" in command.output.readline(), "ready")
        assert command.end() == 0


def test_orphans_are_waited_for() -> None:
    program = f"""{PROGRAM}
subprocess.run(["sh", "-c", "sleep 0.1 & sleep 0.1 &"], check=True)
deadline = time.monotonic() + {wait_seconds_max()}
while time.monotonic() < deadline:
    others = {{name for name in os.listdir("/proc") if name.isdigit()}} - {{"1", str(os.getpid())}}
    if not others:
        sys.exit(7)
    time.sleep(0.05)
"""
    with first("-c", program) as command:
        command.output.read()
    assert command.wait() == 7


def test_keys_of_a_terminal_and_signals_reach_the_command_once() -> None:
    program = f"""{PROGRAM}
over = []
signal.signal(signal.SIGINT, lambda *_: print("told", flush=True))
signal.signal(signal.SIGUSR1, lambda *_: (print("sent", flush=True), over.append(1)))
print("begun", flush=True)
while not over:
    time.sleep(0.05)
"""
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(NAMESPACE[0], [*NAMESPACE, sys.executable, "-c", program])
    with os.fdopen(terminal, "r+b", buffering=0) as opened:
        seen = read_until(opened, b"begun")
        for _ in range(10):
            opened.write(b"\x03")
            seen += read_until(opened, b"told")
        os.kill(child_of(process), signal.SIGUSR1)
        seen += read_until(opened, b"sent")
        assert os.waitpid(process, 0)[1] == 0
    assert (seen.count(b"told"), seen.count(b"sent")) == (10, 1)


def read_until(terminal: IO[bytes], wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += terminal.read(100)
    return seen
