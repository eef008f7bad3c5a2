"""Builds the programs of a Kubernetes from their sources, once, for tests/machines.

tests/machines/kubernetes says in which versions. They are kept beside the root file systems of
machine_rootfs.py.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from machine_rootfs import CACHE

SOURCES: Final = Path(__file__).parents[1] / "machines/kubernetes"
PROGRAMS: Final = ("kubernetes", "etcd", "dns", "pause")
_BUILD_SECONDS_MAX: Final = 5400
"""On two cores that others use, too."""


def version() -> str:
    """Of Kubernetes, such as v1.34.0."""
    (found,) = re.findall(r"k8s\.io/kubernetes (v\S+)", (SOURCES / "go.mod").read_text())
    return str(found)


def built_programs() -> Path:
    """The folder with PROGRAMS; skips the test where they cannot be built, or helm is missing."""
    if shutil.which("helm") is None and not (Path(sys.executable).parent / "helm").exists():
        pytest.skip("there is no helm: make helm")
    key = hashlib.sha256()
    for each in sorted(SOURCES.rglob("*")):
        key.update(each.read_bytes() if each.is_file() else b"")
    made = CACHE / f"kubernetes-{version()}-{key.hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _build(made)
    return made


def _build(made: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go to build Kubernetes with")
    partial = made.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(SOURCES, partial / "src")
    _, minor, _ = version().split(".")
    names = {"gitVersion": version(), "gitMajor": "1", "gitMinor": minor}
    stamp = " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in names.items())
    for name in PROGRAMS:
        done = subprocess.run(
            [
                *("nice", go, "build", "-mod=mod", "-trimpath", f"-ldflags=-s -w {stamp}"),
                *("-o", str(partial / name), f"./{name}"),
            ],
            cwd=partial / "src",
            # Static: `pause` is alone in its image.
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_BUILD_SECONDS_MAX,
        )
        if done.returncode:
            pytest.skip(f"cannot build {name}: {done.stderr.strip()[-300:]}")
    partial.rename(made)
