"""Runs what documents tell to type, in a shell, on ports and in a folder of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from moldau.testing.ports import free_port_run
from moldau.testing.waiting import wait_seconds_max, wait_until


def program_seconds_max() -> float:
    """A whole program waits for several things, one after the other."""
    return 2 * wait_seconds_max()


def processes_in(directory: Path) -> list[int]:
    """Whatever was started there and still runs."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            here = Path(os.readlink(link))
        except OSError:
            continue  # It has just ended, or is not ours to look at.
        if here == directory:
            found.append(int(link.parent.name))
    return found


@pytest.fixture
def empty_directory(tmp_path: Path) -> Iterator[Path]:
    """Where a cluster may be started; it is stopped however the test ends."""
    yield tmp_path
    for pid in processes_in(tmp_path):
        os.kill(pid, signal.SIGKILL)


def run_cluster_story(
    shell: str, ports: tuple[int, ...], directory: Path, *, port_count: int = 4
) -> str:
    """Paste a block that starts a cluster and stops it; all that it printed.

    `ports` are those of its first broker, which are replaced, with those that follow it.
    """
    for usual in ports:
        first = free_port_run(port_count)
        for number in range(port_count):
            shell = re.sub(rf"\b{usual + number}\b", str(first + number), shell)
    return run_script(
        f"set -e -o pipefail\n{shell}", directory, seconds_max=2 * program_seconds_max()
    )


def run_script(
    script: str,
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    seconds_max: float | None = None,
) -> str:
    """Run a script of bash in the folder, without settings of Moldau but `settings`; all that it
    printed. It must succeed, and leave no process."""
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["XDG_CONFIG_HOME"] = str(folder / "profiles of moldau login")
    output = folder / ".output"
    with output.open("w") as sink:
        # A file, since a command that hangs would keep a pipe open beyond the shell's end.
        done = subprocess.run(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=seconds_max or program_seconds_max(),
            env={**environment, **(settings or {})},
            cwd=folder,
            check=False,
        )
    said = output.read_text()
    assert done.returncode == 0, said
    # A supervisor has let go of its cluster, and ends.
    wait_until(
        lambda: processes_in(folder) == [],
        "nothing runs",
        describe=lambda: processes_in(folder),
    )
    return said
