"""Owns Broker: a real broker process for tests, on a free port and a temporary directory.

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
from types import TracebackType
from typing import Self

_READY = re.compile(r"ready.*?((?:\d+\.){3}\d+:\d+)")
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0


class BrokerFailedError(Exception):
    """The process ended, or did not become ready; the message holds what it printed."""


class Broker:
    """One broker process. Started by `start` or by entering the context; ended by pid.

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
        self._owns_dir = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="moldau-test-"))
        self.settings = {"GROUP__INITIAL_REBALANCE_DELAY_MS": "0", **(settings or {})}
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self.output_path = self.data_dir.parent / f"{self.data_dir.name}.log"

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
        """What the process wrote to its standard error so far."""
        return self.output_path.read_text() if self.output_path.exists() else ""

    def start(self) -> Self:
        """Start the process and wait until it serves clients."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
        environment |= {f"MOLDAU_{key}": value for key, value in self.settings.items()}
        command = [sys.executable, "-m", "moldau", "broker", "start", "--id", "1"]
        command += ["--kafka-addr", f"127.0.0.1:{self._port}", "--data-dir", str(self.data_dir)]
        with open(self.output_path, "a") as output:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                text=True,
            )
        self.bootstrap = self._await_ready(self._process)
        # A restart comes back on the same port, as a broker in production does.
        self._port = self.port
        return self

    def _await_ready(self, process: subprocess.Popen[str]) -> str:
        stream = process.stdout
        if stream is None:
            raise BrokerFailedError("no pipe to the broker")
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline:
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
        """SIGTERM, and the exit code of the clean stop."""
        return self._end(signal.SIGTERM)

    def interrupt(self) -> int:
        """SIGINT, as Ctrl-C does, and the exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        """SIGKILL, as `kill -9` does."""
        return self._end(signal.SIGKILL)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailedError(
                f"the broker did not stop within {_STOP_SECONDS_MAX:.0f} s:\n{self.output}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._owns_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.output_path.unlink(missing_ok=True)
