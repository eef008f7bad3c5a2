"""Makes root file systems of Debian, for the machines and containers of tests/machines.

They are made once, and kept outside the repository: under $XDG_CACHE_HOME, or ~/.cache. Nobody may
change them there: work in a copy, or in an overlay.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moldau-machines"
SECONDS_MAX: Final = 1200
"""To fetch and unpack packages. They come from elsewhere: the load of this machine says nothing."""
TRUSTED: Final = Path("etc/ssl/certs/ca-certificates.crt")


def need_packages(programs: Mapping[str, str]) -> None:
    """Install Debian's packages whose programs are missing (program: package); skips the test
    where that cannot be done."""
    missing = sorted({package for name, package in programs.items() if shutil.which(name) is None})
    if os.geteuid() != 0:
        pytest.skip("only root can make machines")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        pytest.skip(f"there is no apt-get to install {', '.join(missing)}")
    get = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    install = [*get, "install", "-y", "--no-install-recommends", *missing]
    if _failure(install) and (_failure([*get, "update"]) or _failure(install)):
        pytest.skip(f"apt-get cannot install {', '.join(missing)}")


def debian(suite: str, packages: Sequence[str] = ()) -> Path:
    """The root folder of a minimal Debian with these packages; skips the test where there is none.

    If `ca-certificates` is one of them, it trusts the certificates that this machine trusts.
    """
    need_packages({"debootstrap": "debootstrap"})
    name = hashlib.sha256(" ".join(sorted(packages)).encode()).hexdigest()[:12]
    made = CACHE / f"debian-{suite}-{name}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            return made
        partial = made.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        include = [f"--include={','.join(packages)}"] if packages else []
        if failure := _failure(["debootstrap", "--variant=minbase", *include, suite, str(partial)]):
            pytest.skip(f"debootstrap cannot make a Debian {suite} here: {failure}")
        if (partial / TRUSTED).exists():
            shutil.copy("/" / TRUSTED, partial / TRUSTED)
        partial.rename(made)
    return made


def _failure(command: list[str]) -> str:
    """Why the command failed, or nothing."""
    done = subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=SECONDS_MAX,
    )
    last = (done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return last if done.returncode else ""
