"""Machines for pages that need several: on each, other names in /etc/hosts, another /etc/moldau and
another /var/lib/moldau, and a network that joins them and reaches nothing else.

A machine is a network namespace, and mounts that last as long as a command. All else is that of the
machine on which the tests run: its processes, users and files. Real ones: tests/machines.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Self

from faults.namespaces import Namespaces, cannot_use_namespaces
from moldau.testing.waiting import wait_seconds_max, wait_until

_SETUP = """
set -e
mount -t overlay overlay -o lowerdir="$1/etc:/etc" /etc
mount -t overlay overlay -o lowerdir="$1/lib:/var/lib" /var/lib
mount --bind "$1/data" /var/lib/moldau
cd "$1/home"
shift
exec "$@"
"""
"""What only this machine has is laid over a copy of what all have, which nobody can write to."""


@cache
def cannot_make_machines() -> str:
    """Why there are none here; empty if there are."""
    if missing := cannot_use_namespaces():
        return missing
    mount = ["mount", "-t", "overlay", "overlay", "-o", "lowerdir=/etc:/usr", "/mnt"]
    tried = subprocess.run(
        ["unshare", "--mount", *mount], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"needs overlayfs: {tried.stderr.strip()}"


class Terminal:
    """A command that goes on, and what it prints."""

    def __init__(self, arguments: list[str], output: Path, environment: dict[str, str]) -> None:
        self._output = output
        with output.open("w") as sink:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> str:
        """Until it says so; the line with it."""

        def found() -> str | None:
            has_ended = self._process.poll() is not None
            lines = [line for line in self.said.splitlines() if text in line]
            assert lines or not has_ended, self.said
            return lines[0] if lines else None

        return wait_until(found, f"{text!r} is shown", describe=lambda: self.said)

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self._process.wait(wait_seconds_max())

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        return self.ended()


class Shell:
    """What a person types on a machine."""

    def __init__(self, home: Path, enter: list[str]) -> None:
        self.home, self.enter = home, enter
        """What to put before a command so that it runs there."""
        self.terminals: list[Terminal] = []
        self._settled: list[str] = []
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")
        } | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def settle(self, line: str) -> None:
        """Take a line whose effect lasts, as `export` has: later ones of this machine find it."""
        self._settled.append(line)

    def run(self, line: str) -> str:
        """What a command prints; it must succeed."""
        code, said = self.attempt(line)
        assert code == 0, f"{line}\n{said}"
        return said

    def attempt(self, line: str) -> tuple[int, str]:
        """Its exit code, and what it prints."""
        done = subprocess.run(
            self.command(line),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            timeout=2 * wait_seconds_max(),
            check=False,
        )
        return done.returncode, done.stdout

    def start(self, line: str) -> Terminal:
        """A command in a terminal of its own."""
        output = self.home / f".terminal-{len(self.terminals)}"
        self.terminals.append(Terminal(self.command(f"exec {line}"), output, self._environment))
        return self.terminals[-1]

    def command(self, line: str) -> list[str]:
        return [*self.enter, "bash", "-c", self.script(line)]

    def script(self, line: str) -> str:
        return "\n".join(["set -e -o pipefail", *self._settled, line])

    def stop(self) -> None:
        for terminal in self.terminals:
            terminal.end()


class Machine(Shell):
    """One of them."""

    def __init__(self, folder: Path, enter: list[str], hosts: str) -> None:
        super().__init__(folder / "home", [*enter, "bash", "-c", _SETUP, "bash", str(folder)])
        self.settings, self.data = folder / "etc/moldau", folder / "data"
        for each in (self.home, self.settings, self.data, folder / "lib/moldau"):
            each.mkdir(parents=True, mode=0o700)
        (folder / "etc/hosts").write_text(hosts)
        (folder / "etc/resolv.conf").touch()

    def lose_disk(self) -> None:
        """Its broker is killed, and its data directory is as new."""
        for terminal in self.terminals:
            terminal.end(signal.SIGKILL)
        shutil.rmtree(self.data)
        self.data.mkdir(mode=0o700)


def hosts_file(addresses: dict[str, str]) -> str:
    """In which all know each as NAME.example, and NAME."""
    names = [f"{address} {name}.example {name}\n" for name, address in addresses.items()]
    return "".join(["127.0.0.1 localhost\n", *names])


class Machines:
    """Some of them, by name."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._spaces = Namespaces(names, tag="machines")
        hosts = hosts_file(self._spaces.addresses)
        self._all = {
            name: Machine(folder / name, self._spaces.command(name), hosts) for name in names
        }

    def __getitem__(self, name: str) -> Machine:
        return self._all[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for machine in self._all.values():
                machine.stop()
        finally:
            self._spaces.close()


PROMPT = re.compile(r"^(\w*)\$ (.*)$")


def steps_of(text: str) -> list[tuple[str, str, str]]:
    """Of a block: where a line was typed (nothing before the `$`: the operator's machine), the line
    without its comment, and what the page shows as its output."""
    steps: list[tuple[str, str, str]] = []
    for line in text.splitlines(keepends=True):
        if typed := PROMPT.match(line):
            steps.append((typed[1], re.sub(r" +# .*", "", typed[2]), ""))
        else:
            where, what, output = steps[-1]
            steps[-1] = (where, what, output + line)
    return steps
