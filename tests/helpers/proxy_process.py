"""A `moldau proxy` process on a free port, ended by its pid."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moldau.testing.waiting import wait_seconds_max


class ProxyProcess:
    """The process, and where it listens."""

    def __init__(self, brokers: Sequence[str], *arguments: str) -> None:
        command = [sys.executable, "-m", "moldau", "proxy", "--listen", "127.0.0.1:0"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
        self.process = subprocess.Popen(
            [*command, *arguments],
            env={**environment, "MOLDAU_GRPC": ",".join(brokers)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stream = self.process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], wait_seconds_max())
        self.said = stream.readline() if ready else ""
        found = re.search(r"listening on (127\.0\.0\.1:\d+)", self.said)
        if found is None:
            self.process.kill()
            raise AssertionError(f"the proxy did not start: {self.process.communicate()}")
        self.address = found[1]

    def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it wrote to standard error."""
        self.process.terminate()
        try:
            _, errors = self.process.communicate(timeout=wait_seconds_max())
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, errors


@contextmanager
def proxy_process(brokers: Sequence[str], *arguments: str) -> Iterator[ProxyProcess]:
    proxy = ProxyProcess(brokers, *arguments)
    try:
        yield proxy
    finally:
        if proxy.process.poll() is None:
            proxy.stop()
