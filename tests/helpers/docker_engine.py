"""A container engine for tests: dockerd in namespaces of its own, with stand-ins for base images.

It has its own network, processes, mounts and folders, so that the ports of a page are free in it,
and all of it ends with its first process. Packages are fetched through a network in user mode, so
no address and no rule of the machine is touched.
"""

import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

import pytest
from doc_pages import ROOT
from machine_rootfs import need_packages

from moldau.testing.waiting import wait_until

CLONE_NEWNET: Final = 0x40000000
BUILD_SECONDS_MAX: Final = 1200
"""A build fetches packages from elsewhere, so that the load of this machine says nothing."""
# What is in /run is this engine's alone, and has short names, as sockets must.
FIRST_PROCESS: Final = """
mkdir -p /run/containerd
mount -t tmpfs tmpfs /run/containerd
exec tini -s -- "$@"
"""


class DockerEngine:
    """Runs until it is left. Whoever enters it is in its network, too."""

    def __init__(self, home: Path) -> None:
        need_packages(
            {
                "dockerd": "docker.io",
                "slirp4netns": "slirp4netns",
                "iptables": "iptables",
                "tini": "tini",
                "git": "git",
            }
        )
        # A package of its own since Debian 13.
        need_packages({"docker": "docker-cli"})
        self.home = home
        self.clone = home / "clone"
        """The files of the repository, as somebody has them who cloned it."""
        self._name = f"moldau-c-{os.getpid()}"
        config = home / "config"
        config.mkdir()
        plugins = {"cliPluginsExtraDirs": [str(Path(sys.executable).parent)]}
        (config / "config.json").write_text(json.dumps(plugins))
        own = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
        self.environment = own | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{home}/docker.sock",
            "DOCKER_CONFIG": str(config),
        }
        if not self._succeeds("docker", "compose", "version"):
            pytest.skip("docker has no plugin for compose: make compose")
        self._numbers = itertools.count(1)
        self._left = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._remove)
            stack.enter_context(self._processes())
            self._copy_files()
            self._left = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    @contextmanager
    def _processes(self) -> Iterator[None]:
        log = self.home / "dockerd.log"
        with log.open("wb") as sink, ExitStack() as stack:

            def start(*words: object) -> subprocess.Popen[bytes]:
                # Nothing outlives the tests, even if those are killed.
                command = ["setpriv", "--pdeathsig=KILL", *map(str, words)]
                process = subprocess.Popen(command, stdout=sink, stderr=sink)
                stack.callback(process.wait)
                stack.callback(process.kill)
                return process

            spaces = ("--net", "--mount", "--pid", "--ipc", "--uts", "--mount-proc")
            outer = start(
                "unshare", *spaces, "--fork", "--kill-child",
                "bash", "-ec", FIRST_PROCESS, "bash",
                "dockerd",
                "--data-root", self.home / "data",
                "--exec-root", "/run/containerd/dockerd",
                "--pidfile", self.home / "dockerd.pid",
                "--host", self.environment["DOCKER_HOST"],
                "--bip", "10.214.1.1/24",
                "--default-address-pool", "base=10.214.128.0/17,size=24",
                "--exec-opt", "native.cgroupdriver=cgroupfs",
                "--cgroup-parent", f"/{self._name}",
                # To be spared by the kernel takes a capability that root may not have.
                "--oom-score-adjust", 0,
            )  # fmt: skip
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            self._first = int(wait_until(children.read_text, "the first process runs").split()[0])
            # All others end with it, and unshare after them.
            stack.callback(outer.wait)
            stack.callback(_kill, self._first)
            start(
                "slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback",
                "--cidr=10.214.0.0/24", self._first, "tap0",
            )  # fmt: skip
            stack.enter_context(network_of(self._first))
            wait_until(
                lambda: outer.poll() is not None or self._serves(),
                "dockerd serves",
                describe=log.read_text,
            )
            if outer.poll() is not None:
                pytest.skip(f"dockerd cannot run here: {log.read_text().strip()[-500:]}")
            yield

    def _serves(self) -> bool:
        has_network = "tap0" in Path(f"/proc/{self._first}/net/dev").read_text()
        return has_network and self._succeeds("docker", "info")

    def _succeeds(self, *command: str) -> bool:
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
        return done.returncode == 0

    def _copy_files(self) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.clone / name)

    def _remove(self) -> None:
        for group in Path("/sys/fs/cgroup").glob(f"**/{self._name}"):
            # Shortly after the death of its last process it is still busy.
            wait_until(partial(_is_removed, group), "its processes are gone", ignoring=OSError)
        # Images are no files that help to explain a failure.
        shutil.rmtree(self.home / "data", ignore_errors=True)

    def run(self, text: str, *, seconds_max: float = BUILD_SECONDS_MAX) -> str:
        """What a script prints, in the clone; it must succeed."""
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.clone,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout.strip()

    @contextmanager
    def foreground(self, text: str) -> Iterator["Foreground"]:
        """A command that goes on, until it is interrupted as by Ctrl-C."""
        log = self.home / f"foreground-{next(self._numbers)}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-ec", text],
                cwd=self.clone,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Foreground(process, log)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def kill(self, container: str) -> None:
        """By the process id, as the kernel does: the engine is not asked."""
        pid = self.run(f"docker inspect -f '{{{{.State.Pid}}}}' {container}")
        self.run(f"nsenter --target {self._first} --pid --mount kill -9 {pid}")


class Foreground:
    """A command in a session of its own, as in a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def interrupt(self) -> int:
        # The shell has become its only command. What that started must not get a second one, as
        # it would be from somebody who is impatient.
        self.process.send_signal(signal.SIGINT)
        wait_until(lambda: self.process.poll() is not None, "it ends", describe=lambda: self.output)
        return self.process.returncode


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _is_removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)
    return True


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """This thread, and all threads and processes that it starts, are in another network."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(network: IO[str]) -> None:
        if libc.setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter a network")

    with open("/proc/thread-self/ns/net") as before, open(f"/proc/{pid}/ns/net") as other:
        enter(other)
        try:
            yield
        finally:
            enter(before)
