"""Builds the wheel and the source distribution of the last commit, twice, and compares the bytes.

python -m release.dist              into dist/, with SHA256SUMS
python -m release.dist --to DIR     into another folder

What is built is what is committed, in a copy of its own, so that nothing that happens to lie in the
work tree gets in. The wheel is made from the unpacked source distribution, which proves that it is
complete. The two copies have other paths, and files with other times and modes. Exit status: 1 if a
check fails; then nothing is written.

--compiled adds a wheel whose hot path is compiled, for this Python and machines like this one.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from release.hot_path import modules

ROOT: Final = Path(__file__).resolve().parent.parent
_SECONDS_MAX: Final = 900
_IN_THE_WHEEL: Final = (
    "moldau/py.typed",
    "moldau/edge/http/console/dist/index.html",
    "moldau/proto/v1/queue.proto",
    "moldau/spark/source/compiled.pyx",
    "pyspark_moldau/__init__.py",
)
"""What no import would miss before a user does."""


class DistError(Exception):
    """Why there is no release; the text says what to do."""


def build(source: Path, out: Path, epoch: int) -> list[Path]:
    """The source distribution of a folder, and the wheel of that distribution.

    The wheel is pure Python: without the hook that compiles a part of it for this machine alone.
    """
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "HATCH_BUILD_NO_HOOKS": "true",
    }
    _hatchling(source, "sdist", out, environment)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        _hatchling(unpacked, "wheel", out, environment)
    (wheel,) = out.glob("*.whl")
    return [sdist, wheel]


def build_compiled(sdist: Path, out: Path, epoch: int) -> Path:
    """The wheel with a compiled hot path, of a source distribution. Raises DistError."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "HOT_PATH": "compiled"}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        _hatchling(unpacked, "wheel", out, environment)
    (wheel,) = out.glob("*.whl")
    problems = compiled_problems(wheel)
    if problems:
        raise DistError("\n".join(problems))
    return wheel


def compiled_problems(wheel: Path) -> list[str]:
    """Of a wheel with a compiled hot path."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    missing = []
    for module in modules(ROOT):
        stem = module.relative_to("src").with_suffix("").as_posix()
        if not any(name.startswith(f"{stem}.") and name.endswith(".so") for name in names):
            missing.append(f"{stem} is not compiled")
        if f"{stem}.py" not in names:
            missing.append(f"{stem}.py is missing: another Python could not run it")
    return missing


def _hatchling(source: Path, target: str, out: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    _run(command, cwd=source, environment=environment)


def _run(
    command: list[str], cwd: Path = ROOT, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise DistError(f"{' '.join(command)} failed:\n{output}")
    return done


def export(to: Path, umask: int) -> None:
    """The files of the last commit."""
    archive = _run(["git", "-c", f"tar.umask={umask:04o}", "archive", "HEAD"]).stdout
    to.mkdir(parents=True)
    subprocess.run(
        ["tar", "-x", "--touch", "-C", str(to)], input=archive, timeout=_SECONDS_MAX, check=True
    )


def differences(one: list[Path], other: list[Path]) -> list[str]:
    """What is not byte by byte the same."""
    names = [path.name for path in one], [path.name for path in other]
    if names[0] != names[1]:
        return [f"other names: {names[0]} and {names[1]}"]
    pairs = zip(one, other, strict=True)
    return [f"{a.name} differs" for a, b in pairs if a.read_bytes() != b.read_bytes()]


def wheel_problems(wheel: Path) -> list[str]:
    """Of the contents of a wheel that is to run anywhere."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    found = [f"{name} is missing" for name in _IN_THE_WHEEL if name not in names]
    if not wheel.name.endswith("-py3-none-any.whl"):
        found.append(f"{wheel.name} is not for every machine")
    packages = ("moldau/", "pyspark_moldau/")
    for name in names:
        is_metadata = ".dist-info/" in name
        if name.endswith((".so", ".pyc")) or not (is_metadata or name.startswith(packages)):
            found.append(f"{name} does not belong into the wheel")
    return found


def make(to: Path, *, compiled: bool = False) -> list[Path]:
    """Build twice, check, and put the files into a folder; raises DistError."""
    if _run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout:
        print("warning: uncommitted changes are not in it", file=sys.stderr)
    epoch = int(_run(["git", "log", "-1", "--format=%ct"]).stdout)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = []
        for number, umask in ((1, 0o022), (2, 0o077)):
            source = folder / ("source" * number)
            export(source, umask)
            built.append(build(source, folder / f"dist{number}", epoch))
        problems = differences(*built) + wheel_problems(built[0][1])
        if problems:
            raise DistError("\n".join(problems))
        if compiled:
            built[0].append(build_compiled(built[0][0], folder / "compiled", epoch))
        _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built[0])])
        to.mkdir(parents=True, exist_ok=True)
        for old in to.glob("moldau-*"):
            old.unlink()
        made = [Path(shutil.copy(path, to)) for path in built[0]]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (to / "SHA256SUMS").write_text("".join(sums))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument(
        "--compiled", action="store_true", help="also a wheel that is compiled for this machine"
    )
    options = parser.parse_args()
    try:
        made = make(options.to, compiled=options.compiled)
    except DistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path} ({path.stat().st_size:,} bytes; twine accepts it)")
    print("two builds of the first two are identical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
