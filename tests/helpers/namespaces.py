"""Owns namespaces of Linux, and the processes in them: all end with the test, however it ends."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from moldau.testing.waiting import wait_until

_KINDS = ("--pid", "--net", "--mount", "--uts", "--ipc")


class Namespaces:
    """Namespaces of processes, network, mounts, names and shared memory.

    `init` is their first program: it only has to wait for its orphans. When it ends, so does every
    process in here, and with the last of them the mounts, interfaces and rules.
    """

    def __init__(self, init: Path, logs: Path, inside: "Namespaces | None" = None) -> None:
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        # A test that is killed has no time to clean up.
        end = () if inside else ("setpriv", "--pdeathsig", "KILL")
        words = [*end, "unshare", *_KINDS, "--fork", "--kill-child", "--mount-proc", str(init)]
        with self.log("namespaces").open("ab") as log:
            self._holder = subprocess.Popen(inside.command(words) if inside else words, stderr=log)
        self._started: list[subprocess.Popen[bytes]] = []
        self.pid = wait_until(self._first_process, "the namespaces exist")

    def _first_process(self) -> int | None:
        """The `init`, found below nsenter, if there is one, and unshare."""
        pid = self._holder.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        is_there = Path(f"/proc/{pid}/comm").read_text().strip() == "pause"
        return pid if is_there else None

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, in here."""
        return ["nsenter", "--target", str(self.pid), *_KINDS, "--", *words]

    def connect(self, cable: str, other: "Namespaces") -> None:
        """Its end is `eth0` there."""
        words = f"ip link add {cable} type veth peer name eth0 netns {other.pid}"
        # Processes are numbered as out here.
        subprocess.run(self.network_command(words.split()), check=True)

    def network_command(self, words: Sequence[str]) -> list[str]:
        """The same command, with the network of in here, and the files and processes out there."""
        return ["nsenter", "--target", str(self.pid), "--net", "--", *words]

    def run(self, *words: str, **options: Any) -> str:
        """What it printed; it must succeed."""
        done = subprocess.run(
            self.command(words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **options,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}"
        return str(done.stdout)

    def start(self, name: str, *words: str) -> None:
        """Leave it running; what it prints goes to `logs`."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                self.command(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._started.append(process)

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        for each in (self._holder, *self._started):
            each.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
