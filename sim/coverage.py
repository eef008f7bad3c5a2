"""The count of statements that simulated worlds execute, package by package."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coverage import Coverage

import moldau

ROOT: Final = Path(moldau.__file__).parent
PACKAGES: Final = (
    "raft",
    "replica",
    "metadata",
    "groups",
    "leases",
    "transactions",
    "log",
    "data",
    "control",
    "coordination",
    "queues",
    "api",
    "net/peers",
    "edge/kafka",
)
"""What a world is there to run; the rest of the product it only meets."""
_UNREACHED: Final = frozenset(
    # Not called in a simulated broker: checks for tests, and processes or threads of their own.
    {
        "leases/invariants.py",
        "log/os_filesystem.py",
        "log/compaction/worker.py",
        "data/cleaner_process.py",
        "replica/flush_threads.py",
    }
)
_NEVER_REACHED: Final = frozenset(
    {"assert_never", "AssertionError", "RaftError", "NotImplementedError"}
)
"""Code that calls or raises these is never reached; a world where it is fails."""


class Statements:
    """Those that ran while it was entered, here and in other processes."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}
        """Lines, by file."""
        self._tracer = Coverage(data_file=None, config_file=False, include=[f"{ROOT}/*"])

    def __enter__(self) -> "Statements":
        self._tracer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.stop()
        data = self._tracer.get_data()
        self.add({path: set(data.lines(path) or ()) for path in data.measured_files()})

    def add(self, seen: dict[str, set[int]]) -> None:
        for path, lines in seen.items():
            self.seen.setdefault(path, set()).update(lines)

    def by_package(self) -> dict[str, tuple[int, int]]:
        """Executed and all, of functions and methods."""
        found = {}
        for package in PACKAGES:
            executed = total = 0
            for path in _files(package):
                statements = statements_of(path.read_text())
                total += len(statements)
                executed += len(statements) - len(self._left(path, statements))
            found[package] = (executed, total)
        return found

    def missing(self) -> dict[str, list[int]]:
        """The first lines of what nobody executed, by file."""
        found = {}
        for package in PACKAGES:
            for path in _files(package):
                left = self._left(path, statements_of(path.read_text()))
                if left:
                    found[str(path.relative_to(ROOT))] = left
        return found

    def _left(self, path: Path, statements: dict[int, range]) -> list[int]:
        seen = self.seen.get(str(path), set())
        return sorted(line for line, lines in statements.items() if seen.isdisjoint(lines))


def _files(package: str) -> Iterator[Path]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if str(path.relative_to(ROOT)) not in _UNREACHED:
            yield path


def statements_of(source: str) -> dict[int, range]:
    """Those inside of functions, by their first line, with the lines that show that they ran.

    What a module does when it is imported says nothing. What a right product never executes is not
    part of the count: what shows a bug, and bodies of protocols.
    """
    found: dict[int, range] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in node.body:
                _collect(part, found)
    return found


def _collect(statement: ast.stmt, found: dict[int, range]) -> None:
    if _is_never_run(statement):
        return
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    last = statement.end_lineno or statement.lineno
    if body:
        first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
        last = max(statement.lineno, first.lineno - 1)
    found[statement.lineno] = range(statement.lineno, last + 1)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for field in ("body", "orelse", "finalbody"):
        for part in getattr(statement, field, ()):
            _collect(part, found)
    for group in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        for part in group.body:
            _collect(part, found)


def _is_never_run(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Constant):
            return True
        called = statement.value
    elif isinstance(statement, ast.Raise) and statement.exc is not None:
        called = statement.exc
    else:
        return isinstance(statement, (ast.Global, ast.Nonlocal))
    if isinstance(called, ast.Call):
        called = called.func
    return isinstance(called, ast.Name) and called.id in _NEVER_REACHED
