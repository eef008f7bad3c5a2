"""Network namespaces: one per broker, one for the clients, and a hub that forwards.

A cut is a routing rule of the hub, so it can be one-way, and packets vanish without an answer, as
behind a broken switch. Needs root; faults/proxy.py does without. Nothing of the machine's own
network is touched, and nothing leaves it.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from typing import Self

_COMMAND_SECONDS_MAX = 20.0
_PROBE_SECONDS_MAX = 1.5


class NamespaceError(Exception):
    """The machine did not do what was asked of it."""


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments],
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise NamespaceError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@cache
def cannot_use_namespaces() -> str:
    """Why this machine has no network namespaces for us; empty if it has."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs ip"
    try:
        with Namespaces(["a", "b"], tag="probe") as spaces:
            spaces.cut("a", "b")
            spaces.heal()
    except NamespaceError as error:
        return str(error)
    return ""


def address_of(index: int) -> str:
    """Of a node, by its place in the list of all."""
    return f"10.213.{index}.2"


class Namespaces:
    """Some nodes that reach each other through a hub."""

    def __init__(self, nodes: list[str], *, tag: str = "net") -> None:
        self._prefix = f"moldau-{tag}-{os.getpid()}"
        self._hub = f"{self._prefix}-hub"
        self._made: list[str] = []
        self._rules: list[tuple[str, str]] = []
        self.addresses = {name: address_of(i) for i, name in enumerate(nodes, 1)}
        try:
            self._make(self._hub)
            _ip("netns", "exec", self._hub, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
            for index, name in enumerate(nodes, 1):
                self._connect(index, name)
        except NamespaceError:
            self.close()
            raise

    def _make(self, space: str) -> None:
        _ip("netns", "add", space)
        self._made.append(space)
        _ip("-n", space, "link", "set", "lo", "up")

    def _connect(self, index: int, name: str) -> None:
        space, gateway = self._space(name), f"10.213.{index}.1"
        self._make(space)
        _ip(
            "-n", self._hub, "link", "add", f"n{index}", "type", "veth", "peer", "name", f"h{index}"
        )
        _ip("-n", self._hub, "link", "set", f"h{index}", "netns", space)
        _ip("-n", self._hub, "addr", "add", f"{gateway}/30", "dev", f"n{index}")
        _ip("-n", self._hub, "link", "set", f"n{index}", "up")
        _ip("-n", space, "addr", "add", f"{self.addresses[name]}/30", "dev", f"h{index}")
        _ip("-n", space, "link", "set", f"h{index}", "up")
        _ip("-n", space, "route", "add", "default", "via", gateway)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def command(self, name: str) -> list[str]:
        """What to put before a command so that it runs on that node."""
        return ["ip", "netns", "exec", self._space(name)]

    def path(self, name: str) -> str:
        """The namespace of that node, as a file."""
        return f"/var/run/netns/{self._space(name)}"

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """No packet from `source` reaches `target`; nor the other way, by default."""
        for pair in [(source, target), (target, source)][: 2 if both else 1]:
            if pair not in self._rules:
                self._rule("add", pair)
                self._rules.append(pair)

    def heal(self) -> None:
        while self._rules:
            self._rule("del", self._rules.pop())

    def _rule(self, verb: str, pair: tuple[str, str]) -> None:
        ends = [self.addresses[name] for name in pair]
        _ip("-n", self._hub, "rule", verb, "from", ends[0], "to", ends[1], "blackhole")

    def reaches(self, source: str, target: str, port: int) -> bool:
        """Whether a connection from one node to another can be made: the proof of a cut."""
        code = (
            "import socket,sys\n"
            f"socket.create_connection(({self.addresses[target]!r}, {port}), {_PROBE_SECONDS_MAX})"
        )
        done = subprocess.run(
            [*self.command(source), sys.executable, "-c", code],
            capture_output=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )
        return done.returncode == 0

    def close(self) -> None:
        while self._made:
            _ip("netns", "del", self._made.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
