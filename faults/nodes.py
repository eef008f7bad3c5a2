"""Broker processes under test: started as an operator does, ended and paused by pid."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from moldau.model.layout import ADMIN_TOKEN_FILE
from moldau.testing.ports import free_ports

_READY: Final = re.compile(r"ready.*?((?:\d+\.){3}\d+:\d+)")
START_SECONDS_MAX: Final = 120.0
_STOP_SECONDS_MAX: Final = 30.0
_ROOT: Final = Path(__file__).resolve().parent.parent


class NodeError(Exception):
    """A broker did not do what the scenario needs; the message holds what it printed."""


def free_port() -> int:
    """A port of loopback that is free now; a broker keeps it over its restarts."""
    return free_ports(1)[0]


class Node:
    """One broker. `listen` is its address for clients, `join` the HTTP address of a member; one
    without it bootstraps a cluster, unless `bootstraps` is False.

    `prefix` runs it in another place, as `ip netns exec` does; `module` an entry point that
    stands in for `moldau`, with `environment` for it.
    """

    def __init__(
        self,
        *,
        number: int,
        data_dir: Path,
        output: Path,
        listen: str,
        advertised: str = "",
        raft: str = "",
        raft_advertised: str = "",
        http: str = "",
        join: str = "",
        settings: dict[str, str] | None = None,
        prefix: list[str] | None = None,
        module: str = "moldau",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.number = number
        self.data_dir = data_dir
        self.listen = listen
        self.advertised = advertised or listen
        host = listen.rpartition(":")[0]
        self.raft = raft or f"{host}:{free_port()}"
        self.http = http or f"{host}:{free_port()}"
        self.grpc = f"{host}:{free_port()}"
        self.join = join
        self.bootstraps = not join
        self._raft_advertised = raft_advertised
        self._output = output
        self._settings = dict(settings or {})
        self._prefix = prefix or []
        self._module = module
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.last_code: int | None = None
        """Of a start that failed; None: it had to be ended."""
        self._started = 0.0
        self._output_before = 0
        self.start_seconds = 0.0
        """From the start of the process to its first line: ready."""

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def pid(self) -> int:
        # `ip netns exec` replaces itself by the command, so this is the broker's own.
        return self._running().pid

    @property
    def admin_token(self) -> str:
        """Of the broker's local administrator. Raises OSError."""
        return (self.data_dir / ADMIN_TOKEN_FILE).read_text("ascii").strip()

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def last_output(self) -> str:
        """What it wrote since its last start."""
        return self.output[self._output_before :]

    @property
    def data_bytes(self) -> int:
        """What the files hold, without room that was taken in advance."""
        return sum(
            path.stat().st_blocks * 512 for path in self.data_dir.rglob("*") if path.is_file()
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise NodeError(f"broker {self.number} is not running")
        return self._process

    def start(self) -> None:
        """Start it and wait until it serves. Raises NodeError if it does not."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start it, and don't wait."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
        environment["MOLDAU_KAFKA__ADVERTISED"] = self.advertised
        # Brokers in network namespaces are not on loopback; nobody else reaches them there.
        environment["MOLDAU_SECURITY__INSECURE"] = "true"
        if self._raft_advertised:
            environment["MOLDAU_RAFT__ADVERTISED"] = self._raft_advertised
        environment |= self._environment
        environment |= {f"MOLDAU_{key}": value for key, value in self._settings.items()}
        command = [*self._prefix, sys.executable, "-m", self._module, "broker", "start"]
        command += ["--id", str(self.number), "--kafka-addr", self.listen]
        command += ["--raft-addr", self.raft, "--http-addr", self.http, "--grpc-addr", self.grpc]
        command += ["--data-dir", str(self.data_dir)]
        if self.join:
            command += ["--join-addr", self.join]
        elif self.bootstraps:
            command.append("--bootstrap")
        self._started = time.monotonic()
        self._output_before = len(self.output)
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                env=environment,
                text=True,
            )

    def await_ready(self) -> None:
        """Wait until a launched one serves. Raises NodeError if it does not."""
        self._await_ready(self._running(), self._started + START_SECONDS_MAX)
        self.start_seconds = time.monotonic() - self._started

    def _await_ready(self, process: subprocess.Popen[str], deadline: float) -> None:
        stream = process.stdout
        if stream is None:
            raise NodeError("no pipe to the broker")
        while time.monotonic() < deadline:
            readable, _, _ = select.select([stream], [], [], 0.5)
            if readable:
                line = stream.readline()
                if _READY.search(line):
                    return
                if line:
                    continue
            if process.poll() is not None:
                break
        code = self.last_code = process.poll()
        self.kill()
        raise NodeError(
            f"broker {self.number} did not start (exit code {code}):\n{self.last_output[-3000:]}"
        )

    def pause(self) -> None:
        """SIGSTOP; returns when every thread of it stands still."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while self.state() != "T":
            if time.monotonic() > deadline:
                raise NodeError(f"broker {self.number} could not be paused")
            time.sleep(0.005)

    def state(self) -> str:
        """The kernel's letter for it (T: stopped), or its least stopped thread's."""
        states = set()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return "T" if states == {"T"} else min(states - {"T"})

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def send_kill(self) -> None:
        """The signal of `kill`, without waiting for the end."""
        os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """SIGKILL; works on a paused process too."""
        return self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """End it in whatever state it is."""
        if self._process is not None:
            self.kill()

    def exit_code(self, seconds_max: float) -> int | None:
        """The code of a process that ends by itself; None if it does not in time."""
        process = self._running()
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return None
        self._forget()
        return code

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ended_by_itself(self) -> int | None:
        """The code of one that nobody ended; None if it runs, or was ended or waited for."""
        return self._process.poll() if self._process is not None else None

    def _end(self, number: int) -> int:
        process = self._running()
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeError(
                f"broker {self.number} did not stop:\n{self.last_output[-3000:]}"
            ) from None
        finally:
            self._forget()
        return code

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()
