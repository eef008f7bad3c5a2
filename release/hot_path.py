"""Compiles the hot path: the modules that run for every request, by mypyc, from the same source.

python -m release.hot_path                  into build/compiled
python -m release.hot_path --to DIR         into another folder

The folder gets a copy of the packages with the compiled libraries beside their modules. Python
prefers a library to the module that it was made from, so that what starts there runs compiled:
PYTHONPATH=build/compiled moldau … The source tree stays as it is, and runs interpreted.

It needs a C compiler, the headers of Python, and mypy. Exit status: 1 where one is missing; then
Moldau runs interpreted.
"""

import argparse
import contextlib
import io
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TREE: Final = ROOT / "build/compiled"
GROUP: Final = "moldau_hot"
"""The library that holds the code of all modules is called so; beside each is a small one."""

PACKAGES: Final = ("records", "raft", "replica")
"""Compiled as a whole, but for what EXCEPTIONS names."""

MODULES: Final = (
    "control/metadata_replica",
    "coordination/coordinator_host",
    "coordination/coordinator_service",
    "coordination/markers",
    "coordination/transaction_service",
    "data/commit",
    "data/fetch",
    "data/offsets",
    "data/partitions",
    "data/produce",
    "data/stored_batches",
    "data/traffic",
    "data/transactional_produce",
    "edge/kafka/client_connections",
    "edge/kafka/deadlines",
    "edge/kafka/dispatcher",
    "edge/kafka/handler",
    "edge/kafka/handlers/add_partitions_to_txn",
    "edge/kafka/handlers/end_txn",
    "edge/kafka/handlers/fetch",
    "edge/kafka/handlers/produce",
    "edge/kafka/pending_produce",
    "edge/kafka/produce_reply",
    "edge/kafka/produce_request",
    "edge/kafka/produce_transactional",
    "edge/kafka/sasl_gate",
    "edge/kafka/throttle",
    "edge/kafka/turn_order",
    "log/control_entries",
    "log/control_journal",
    "log/disk_log",
    "log/disk_log_state",
    "log/epochs",
    "log/filesystem",
    "log/flush",
    "log/flush_mark",
    "log/index",
    "log/os_filesystem",
    "log/prefetch",
    "log/reader",
    "log/scan",
    "log/segment",
    "log/slow_filesystem",
    "log/truncation",
    "log/vote_journal",
    "log/writer",
    "model/histogram",
    "model/slices",
    "model/timers",
    "net/budget",
    "net/buffers",
    "net/connection",
    "net/partial_frame",
    "net/peers/cuts",
    "net/peers/link",
    "net/peers/listener",
    "net/peers/methods",
    "net/peers/rpc",
    "net/peers/stream",
    "net/replies",
    "net/socket_writer",
    "net/traffic",
    "transactions/coordinator",
    "transactions/decide",
    "transactions/replies",
    "wire/framing",
    "wire/take",
    "wire/varint",
)
"""Of other packages."""

EXCEPTIONS: Final = frozenset(
    {
        # Types that msgspec decodes: mypyc forgets what is inside a list or tuple, and the keyword
        # arguments of a class.
        "raft/config",
        "raft/membership",
        "replica/producer_snapshot",
    }
)


BEST: Final = "2"


class CompileError(Exception):
    """Why there are no libraries; the text says what to do."""


def modules(root: Path = ROOT) -> list[Path]:
    """The sources that are compiled, relative to the root."""
    package = root / "src/moldau"
    names = [
        f"{name}/{path.stem}" for name in PACKAGES for path in sorted((package / name).glob("*.py"))
    ]
    found = [name for name in names if not name.endswith("__init__") and name not in EXCEPTIONS]
    return [Path("src/moldau", f"{name}.py") for name in (*found, *MODULES)]


def require_tools() -> None:
    """Raises CompileError if something is missing that it takes to compile."""
    for package in ("mypyc", "setuptools"):
        if find_spec(package) is None:
            raise CompileError(f"{package} is missing: pip install mypy setuptools")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CompileError(f"there is no C compiler ({compiler}); on Debian: apt-get install gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CompileError("Python's headers are missing; on Debian: apt-get install python3-dev")


def compile_modules(root: Path, into: Path, level: str = BEST) -> list[Path]:
    """Put the libraries into a folder, below the names of their packages. Raises CompileError.

    `level` of the C compiler: 0 takes half the time, for tests that do not wait for speed.
    """
    require_tools()
    from mypyc.build import mypycify

    into = into.resolve()
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(root):
        try:
            with contextlib.redirect_stdout(said):
                extensions = mypycify(
                    ["--config-file=pyproject.toml", *map(str, modules(root))],
                    opt_level=level,
                    debug_level="0",
                    multi_file=True,
                    target_dir=f"{folder}/c",
                    group_name=GROUP,
                )
        except SystemExit:
            raise CompileError(f"mypyc does not compile this:\n{said.getvalue()}") from None
        with contextlib.redirect_stdout(said):
            return build(extensions, into, Path(folder, "o"))


def build(extensions: Sequence[Any], into: Path, temporary: Path) -> list[Path]:
    """The libraries of what mypyc wrote, by one C compiler per core. Raises CompileError.

    setuptools compiles the files of a library one after the other.
    """
    from setuptools import Distribution

    command = Distribution({"ext_modules": list(extensions)}).get_command_obj("build_ext")
    begin = command.build_extensions

    def begin_side_by_side() -> None:
        # Of this compiler, not of its class: setuptools has two of that, by two names.
        command.compiler.compile = _side_by_side(command.compiler.compile)
        begin()

    command.build_extensions = begin_side_by_side
    command.build_lib, command.build_temp = str(into), str(temporary)
    # Of libraries: that of each module is one short file.
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    try:
        command.run()
    except Exception as error:
        raise CompileError(f"the C compiler failed: {error}") from error
    return [Path(path) for path in command.get_outputs()]


def _side_by_side(one_by_one: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def compile_all(sources: list[str], *rest: Any, **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            made = threads.map(lambda source: one_by_one([source], *rest, **options), sources)
            return [path for paths in made for path in paths]

    return compile_all


def make_tree(root: Path, to: Path, level: str = BEST) -> int:
    """Copy the packages, and compile them there; returns the number of libraries."""
    require_tools()
    began = time.time()
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        new = Path(folder, "tree")
        for package in ("moldau", "pyspark_moldau"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / "src" / package, new / package, ignore=ignored)
        made = compile_modules(root, new, level)
        shutil.rmtree(to, ignore_errors=True)
        new.rename(to)
        # Older than a source that changes from now on, which `make run` looks for.
        os.utime(to, (began, began))
    return len(made)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=TREE, metavar="DIR")
    parser.add_argument("--level", choices="0123", default=BEST, help="of the C compiler")
    options = parser.parse_args(arguments)
    options.to.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    try:
        count = make_tree(ROOT, options.to, options.level)
    except CompileError as error:
        print(f"error: {error}\nMoldau runs without: interpreted", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"compiled {count} libraries in {seconds:.0f} s: PYTHONPATH={options.to} moldau …")
    return 0


if __name__ == "__main__":
    sys.exit(main())
