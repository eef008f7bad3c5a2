"""A real broker process for tests, on a free port and a temporary directory.

with Broker() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from moldau.testing.ports import free_ports
from moldau.testing.waiting import WaitTimeoutError, wait_seconds_max, wait_until

_TEST_SETTINGS = {
    "GROUP__INITIAL_REBALANCE_DELAY_MS": "0",
    # Tests write records with fixed, old timestamps: the retention check, every five minutes by
    # default, would delete them.
    "LOG__RETENTION_CHECK_MS": "7d",
}

_READY = re.compile(r"ready.*?((?:\d+\.){3}\d+:\d+)")


class BrokerFailedError(Exception):
    """The process ended, or did not become ready; the message contains its output."""


class Broker:
    """One broker process, started by `start` or by entering the context.

    `settings` are configuration keys in the form of environment variables without their prefix:
    ``Broker(settings={"LOG__FLUSH": "never"})``.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        settings: dict[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self._is_temporary_dir = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="moldau-test-"))
        self.settings = {**_TEST_SETTINGS, **(settings or {})}
        self._port = port
        self.raft_port, self.http_port, self.grpc_port = free_ports(3)
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self.output_path = self.data_dir.parent / f"{self.data_dir.name}.log"
        self.module = "moldau"
        """What Python runs: another one may prepare faults first, and then run the command line."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailedError("the broker is not running")
        return self._process.pid

    @property
    def host(self) -> str:
        return self.bootstrap.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def output(self) -> str:
        return self.output_path.read_text() if self.output_path.exists() else ""

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def is_running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def arguments(self) -> list[str]:
        return [
            *("--id", "1"),
            *("--kafka-addr", f"127.0.0.1:{self._port}"),
            *("--raft-addr", f"127.0.0.1:{self.raft_port}"),
            *("--http-addr", self.http_address),
            *("--grpc-addr", self.grpc_address),
            *("--data-dir", str(self.data_dir)),
            "--bootstrap",
        ]

    def start(self) -> Self:
        """Start the process and wait until it serves clients."""
        self.launch()
        return self.wait_ready()

    def launch(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
        environment |= {f"MOLDAU_{key}": value for key, value in self.settings.items()}
        command = [sys.executable, "-m", self.module, "broker", "start", *self.arguments()]
        with open(self.output_path, "a") as output:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                text=True,
            )

    def wait_ready(self) -> Self:
        """Wait until it serves clients. Raises BrokerFailedError if it does not."""
        if self._process is None:
            raise BrokerFailedError("the broker was not started")
        self.bootstrap = self._await_ready(self._process)
        # A restart uses the same port, as a broker in production does.
        self._port = self.port
        return self

    def _await_ready(self, process: subprocess.Popen[str]) -> str:
        stream = process.stdout
        if stream is None:
            raise BrokerFailedError("no pipe to the broker")
        began = time.monotonic()
        while time.monotonic() - began < wait_seconds_max():
            readable, _, _ = select.select([stream], [], [], 0.5)
            if readable:
                line = stream.readline()
                if match := _READY.search(line):
                    return match[1]
                if line:
                    continue
            if process.poll() is not None:
                break
        code = process.poll()
        self.kill()
        raise BrokerFailedError(f"the broker did not start (exit code {code}):\n{self.output}")

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code of the clean stop."""
        return self._end(signal.SIGTERM)

    def interrupt(self) -> int:
        """Send SIGINT, as Ctrl-C does; returns the exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        """Send SIGKILL and wait for the end; returns the exit code."""
        return self._end(signal.SIGKILL)

    def send_kill(self) -> None:
        """Send SIGKILL without waiting for the end."""
        os.kill(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP; returns when every thread has stopped."""
        tasks = Path(f"/proc/{self.pid}/task")
        os.kill(self.pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: {_state(task) for task in tasks.iterdir()} == {"T"},
                "every thread of the broker has stopped",
                ignoring=OSError,
            )
        except WaitTimeoutError as error:
            raise BrokerFailedError(f"cannot pause the broker: {error}") from None

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        seconds_max = wait_seconds_max()
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailedError(
                f"the broker did not stop within {seconds_max:.0f} s:\n{self.output}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()
        if self._is_temporary_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.output_path.unlink(missing_ok=True)


def _state(task: Path) -> str:
    """The kernel's state letter of a thread."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
