"""Makes the images that the pods of tests/machines run, without an engine and without a registry.

That of Moldau has what the Dockerfile puts into it, on a Debian that is made here in place of
python:3.13-slim; another test runs the Dockerfile itself.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from machine_rootfs import CACHE, SECONDS_MAX, debian

from moldau import __version__
from release.deploy_files import semantic_version

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("pyproject.toml", "constraints.txt", "hatch_build.py", "README.md", "LICENSE")
FOLDERS: Final = ("proto", "src")
PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
STEPS: Final = (
    "useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/moldau moldau",
    "install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/moldau /etc/moldau",
    "python3 -m venv /opt/moldau",
    "/opt/moldau/bin/python -m pip install --quiet --no-cache-dir -c /src/constraints.txt /src",
    "/opt/moldau/bin/python -m pip uninstall --quiet --yes pip",
)
IMAGE: Final = f"moldau:{semantic_version(__version__)}"
CONFIG: Final = {
    "Env": [
        "PATH=/opt/moldau/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
        "MOLDAU_DATA_DIR=/var/lib/moldau",
    ],
    "User": "10001:10001",
    "WorkingDir": "/var/lib/moldau",
    "Volumes": {"/var/lib/moldau": {}},
    "Entrypoint": ["moldau"],
}


def moldau_image() -> Path:
    """An archive with this tree as moldau:VERSION."""
    key = hashlib.sha256(repr(STEPS).encode())
    for each in files():
        key.update(each.read_bytes())
    made = CACHE / f"moldau-image-{key.hexdigest()[:12]}.tar"
    base = debian("trixie", PACKAGES)
    with (CACHE / "moldau-image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for old in CACHE.glob("moldau-image-*"):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            _make(base, made)
    return made


def files() -> list[Path]:
    inside = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*"))]
    known = (path for path in inside if "__pycache__" not in path.parts)
    return [ROOT / name for name in SOURCES] + [path for path in known if path.is_file()]


def _make(base: Path, made: Path) -> None:
    root = made.with_suffix(".root")
    subprocess.run(["cp", "--archive", "--reflink=auto", str(base), str(root)], check=True)
    for each in files():
        place = root / "src" / each.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, place)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    for step in STEPS:
        subprocess.run(["chroot", str(root), *step.split()], check=True, timeout=SECONDS_MAX)
    shutil.rmtree(root / "src")
    (root / "etc/resolv.conf").unlink()
    archive(root, IMAGE, CONFIG, made)
    shutil.rmtree(root)


def pause_image(program: Path, folder: Path) -> Path:
    """An archive with this program alone, as pause:1."""
    root = folder / "pause"
    root.mkdir()
    shutil.copy(program, root)
    made = folder / "pause.tar"
    archive(root, "pause:1", {"Entrypoint": ["/pause"], "User": "65535:65535"}, made)
    return made


def archive(root: Path, name: str, config: Mapping[str, Any], made: Path) -> None:
    """A root folder as an image of one layer, in the format of `docker save`."""
    layer = made.with_suffix(".layer")
    subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(layer), "."], check=True)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    index = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    partial = made.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        tar.add(layer, "layer.tar")
        for file_name, content in (("config.json", described), ("manifest.json", index)):
            text = json.dumps(content)
            part = made.with_suffix(f".{file_name}")
            part.write_text(text)
            tar.add(part, file_name)
            part.unlink()
    layer.unlink()
    partial.rename(made)
