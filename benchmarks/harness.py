"""Processes, ports, clocks and temporary directories of a benchmark run.

Every server and every client is a process of its own, ended by its pid, bounded in time, with its
output in a file. What a server cost is read from its CPU clock, not from the wall: on a small
shared machine the clients eat half of the wall time, and other programs some more.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
CLIENT_READY = b"ready\n"
CLIENT_GO = b"go\n"
CLIENT_SETUP_S_MAX = 60.0
CLIENT_RUN_S_MAX = 120.0
STOP_S_MAX = 20.0
MB = 1e6


class BenchmarkError(Exception):
    """A server or a client did not do what the measurement needs; the message says which."""


def free_port() -> int:
    """Take a free TCP port on loopback; a race with another program shows as a failed start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def workspace(base: Path | None = None) -> Iterator[Path]:
    """A directory that is gone afterwards, whatever happened."""
    path = Path(tempfile.mkdtemp(prefix="moldau-bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- what a process costs -------------------------------------------------------------------------


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that are alive."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        try:
            tasks = os.listdir(f"/proc/{current}/task")
        except FileNotFoundError:
            continue
        found.append(current)
        for task in tasks:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{current}/task/{task}/children").read_text()
                todo.extend(int(child) for child in children.split())
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, of all threads of a process and its living descendants.

    The kernel's per-process CPU clock counts what /proc/PID/stat counts (utime + stime of every
    thread), in nanoseconds instead of ticks of 10 ms.
    """
    total = 0.0
    for member in process_tree(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~member << 3) | 2)
    return total


def rss_bytes(pid: int) -> int:
    total = 0
    for member in process_tree(pid):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) * 1024
    return total


def machine_cpu_seconds() -> float:
    """CPU time that all programs of the machine have used, and what the host took (steal)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


# --- servers --------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Ours without what configures brokers: a setting of the caller's must not bend a figure."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
    # This checkout is measured, whichever is installed.
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


class Server:
    """A server process: started with its output in a file, stopped by pid with its descendants."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        directory: Path,
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.name = name
        self.command = command
        self.output_path = directory / f"{name}.out"
        self.started_at = time.perf_counter()
        with open(self.output_path, "ab") as output:
            self._output_start = output.tell()
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**environment(), **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        with open(self.output_path, "rb") as file:
            file.seek(self._output_start)
            return file.read().decode(errors="replace")

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def wait_for(
        self, ready: Callable[[], bool], *, seconds_max: float = 30.0, interval_s: float = 0.005
    ) -> float:
        """Wait until `ready` says so; the seconds since the process was started."""
        deadline = time.perf_counter() + seconds_max
        while True:
            if ready():
                return time.perf_counter() - self.started_at
            if self.process.poll() is not None:
                raise BenchmarkError(
                    f"{self.name} ended with code {self.process.returncode} before it was ready:\n"
                    f"{self.output()[-2000:]}"
                )
            if time.perf_counter() > deadline:
                raise BenchmarkError(
                    f"{self.name} was not ready after {seconds_max} s:\n{self.output()[-2000:]}"
                )
            time.sleep(interval_s)

    def stop(self, sign: int = signal.SIGTERM) -> float:
        """End the process and whatever it started; the seconds that it took."""
        begun = time.perf_counter()
        members = process_tree(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(sign)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S_MAX)
        # A wrapper script may leave its server behind; the list was taken before the signal.
        for member in members:
            if member != self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
        return time.perf_counter() - begun

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Measured(Protocol):
    """What is measured while a load runs: one server, or several that are one to their clients."""

    name: str

    def cpu_seconds(self) -> float: ...

    def rss_bytes(self) -> int: ...


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- clients --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One load as measured: what the client saw, and what it cost the server."""

    wall_s: float
    messages: int
    bytes: int
    server_cpu_s: float
    client_cpu_s: float
    other_cpu_share: float
    server_rss_bytes: int
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def mb_per_s(self) -> float:
        return self.bytes / MB / self.wall_s

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_ms_per_mb(self) -> float:
        return self.server_cpu_s * 1e3 / (self.bytes / MB)

    @property
    def cpu_us_per_message(self) -> float:
        return self.server_cpu_s * 1e6 / self.messages


def _read_line(process: subprocess.Popen[bytes], seconds_max: float) -> bytes:
    """One line of a client's output; clients print two lines, so unbuffered reads are cheap."""
    deadline = time.perf_counter() + seconds_max
    stdout = process.stdout
    if stdout is None:
        raise BenchmarkError("the client's output is not a pipe")
    line = bytearray()
    while not line.endswith(b"\n"):
        left = deadline - time.perf_counter()
        if left <= 0 or not select.select([stdout], [], [], left)[0]:
            raise BenchmarkError(f"no response within {seconds_max} s")
        chunk = os.read(stdout.fileno(), 1 << 16)
        if not chunk:
            raise BenchmarkError("it ended early")
        line += chunk
    return bytes(line)


def run_client(
    kind: str, spec: dict[str, Any], server: Measured, *, settle_s: float = 0.0
) -> Sample:
    """Run one load in a process of its own.

    The client connects, prepares its frames and warms up, says that it is ready, and is let go;
    the server's clock is read on either side of the load alone. Its memory is read after
    `settle_s`, while the client still holds its connections.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients", kind, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=environment(),
            bufsize=0,
        )
        try:
            return _measure(process, server, settle_s)
        except (BenchmarkError, BrokenPipeError) as error:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else str(error)
            raise BenchmarkError(f"load {kind} on {server.name}: {reason}") from error
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(STOP_S_MAX)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _measure(process: subprocess.Popen[bytes], server: Measured, settle_s: float) -> Sample:
    if process.stdin is None:
        raise BenchmarkError("no pipe to the client")
    if _read_line(process, CLIENT_SETUP_S_MAX) != CLIENT_READY:
        raise BenchmarkError("the client did not get ready")
    server_before, client_before = server.cpu_seconds(), cpu_seconds(process.pid)
    machine_before, wall_before = machine_cpu_seconds(), time.perf_counter()
    process.stdin.write(CLIENT_GO)
    result = json.loads(_read_line(process, CLIENT_RUN_S_MAX))
    wall = time.perf_counter() - wall_before
    server_cpu = server.cpu_seconds() - server_before
    client_cpu = cpu_seconds(process.pid) - client_before
    other = machine_cpu_seconds() - machine_before - server_cpu - client_cpu
    time.sleep(settle_s)
    server_rss = server.rss_bytes()
    process.stdin.close()
    process.wait(STOP_S_MAX)
    return Sample(
        wall_s=result.pop("wall_s"),
        messages=result.pop("messages"),
        bytes=result.pop("bytes"),
        server_cpu_s=server_cpu,
        client_cpu_s=client_cpu,
        other_cpu_share=max(0.0, other) / (wall * (os.cpu_count() or 1)),
        server_rss_bytes=server_rss,
        detail=result,
    )


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")
