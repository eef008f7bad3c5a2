"""One broker process: its command line, its log file, and its "ready" line.

The supervisor decides when to start and stop it.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from moldau.client.processes import started_at
from moldau.model.play import PLAY_OPTION
from moldau.supervisor.state import ClusterState, Member

_READY = re.compile(
    rb"^moldau \S+ ready on \S+ \(broker (\d+), cluster ([^\s,]+)(?:.*? HTTP https?://([^\s,]+))?",
    re.MULTILINE,
)
STOP_SECONDS_MAX = 40.0
"""After SIGTERM, before it is killed."""

_REASON_BYTES_MAX = 16 * 1024
_REASON_LINES_MAX = 5
_LINE_BYTES_MAX = 64 * 1024

CommandOf = Callable[[Path, ClusterState, Member, "str | None"], list[str]]
"""The command line of a broker: directory, cluster, broker, HTTP address of a broker to join."""


def broker_command(
    directory: Path, state: ClusterState, member: Member, join: str | None
) -> list[str]:
    """`moldau broker start` with the settings of this broker."""
    command = [sys.executable, "-m", "moldau", "broker", "start", "--id", str(member.id)]
    # Also where the environment or a file says how many processes a node has.
    command += ["--processes", "1"]
    command += ["--data-dir", str(directory.absolute() / member.directory)]
    command += ["--kafka-addr", member.kafka, "--raft-addr", member.raft]
    command += ["--http-addr", member.http, "--grpc-addr", member.grpc]
    if state.play:
        # No setting: neither a file, nor the environment, nor a request can turn it on.
        command += [PLAY_OPTION, str(directory.absolute())]
    if join is not None:
        command += ["--join-addr", join]
    elif not state.cluster_id:
        command.append("--bootstrap")
    keys = {key for key, _ in state.settings}
    if not keys & {"topic.replication_factor", "replication_factor"}:
        command += ["--set", f"topic.replication_factor={state.replication_factor}"]
    for key, value in state.settings:
        command += ["--set", f"{key}={value}"]
    return command


def log_path(directory: Path, member: Member) -> Path:
    return directory / f"broker-{member.id}.log"


class Child:
    """A running process; signalled only through this object, never by a stored pid."""

    def __init__(
        self,
        command: list[str],
        log: Path | None = None,
        *,
        stdin: bytes | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """`log`: where its output goes; None: to our stderr. `stdin`: its standard input.
        `descriptors`: what it inherits. Raises OSError."""
        self._log = log
        self._tail = b""
        self.broker_id: int | None = None
        self.cluster_id: str | None = None
        """Set when it is ready, as are the others."""
        self.http: str | None = None
        with open(log, "ab") if log is not None else contextlib.nullcontext() as output:
            self._log_start = 0 if output is None else output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                # Ctrl-C goes to the supervisor only, which stops the brokers in order.
                start_new_session=True,
                pass_fds=descriptors,
            )
        if stdin is not None and (pipe := self._process.stdin) is not None:
            # One that has ended already is noticed by its exit code.
            with contextlib.suppress(OSError), pipe:
                pipe.write(stdin)
        self.pid = self._process.pid
        self.started = started_at(self.pid)
        pipe = self._process.stdout
        if pipe is None:
            raise RuntimeError("broker process started without a stdout pipe")
        self._pipe = pipe
        os.set_blocking(pipe.fileno(), False)
        self.pipe_open = True

    @property
    def is_ready(self) -> bool:
        return self.cluster_id is not None

    def fileno(self) -> int:
        return self._pipe.fileno()

    def read(self) -> bool:
        """Read its output; True if it has just become ready."""
        try:
            data = os.read(self._pipe.fileno(), _LINE_BYTES_MAX)
        except BlockingIOError:
            return False
        if not data:
            self.pipe_open = False
            return False
        # Copy it to the log; a full disk must not stop the broker.
        if self._log is not None:
            with contextlib.suppress(OSError), open(self._log, "ab") as output:
                output.write(data)
        was_ready = self.is_ready
        self._tail = (self._tail + data)[-_LINE_BYTES_MAX:]
        whole, newline, _ = self._tail.rpartition(b"\n")
        if newline and (match := _READY.search(whole)):
            self.broker_id, self.cluster_id = int(match[1]), match[2].decode()
            self.http = match[3].decode() if match[3] else None
        return self.is_ready and not was_ready

    def poll(self) -> int | None:
        """Its exit code once it has ended; negative: the signal that ended it."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        """Frozen until `resume`; also signals wait, except SIGKILL."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._pipe.close()
        self.pipe_open = False

    def reason(self, code: int) -> str:
        """Why it ended: the errors it printed, or the last lines of its log."""
        if code < 0 or self._log is None:
            # A signal leaves no message: the last line of the log is unrelated.
            return describe_exit(code)
        try:
            with open(self._log, "rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, log.tell() - _REASON_BYTES_MAX))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        printed = [line for line in lines if line.startswith(("error: ", "hint: "))]
        if not printed:
            printed = [line for line in lines if line.strip()][-_REASON_LINES_MAX:]
        return "\n".join([describe_exit(code), *printed])


def describe_exit(code: int) -> str:
    """An exit code as text."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"
