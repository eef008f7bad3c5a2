"""Owns the count of statements that simulated worlds execute, package by package."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import moldau

ROOT: Final = Path(moldau.__file__).parent
PACKAGES: Final = (
    "raft",
    "replica",
    "metadata",
    "groups",
    "transactions",
    "log",
    "service",
    "net/peers",
    "edge/kafka",
)
"""What a world is there to run; the rest of the product it only meets."""
_UNREACHED: Final = frozenset(
    # What nobody calls in a broker: checks for tests, a log in memory, a process of its own.
    {
        "groups/invariants.py",
        "groups/queue/invariants.py",
        "transactions/invariants.py",
        "metadata/invariants.py",
        "log/memory.py",
        "log/memory_clean.py",
        "log/files.py",
        "log/clean_worker.py",
        "service/cleaner_process.py",
        "replica/flush_threads.py",
    }
)


class Statements:
    """Counts while it is entered. Whole functions that were seen are not looked at any more."""

    def __init__(self) -> None:
        self._seen: dict[CodeType, set[int]] = {}
        self._left: dict[CodeType, set[int]] = {}

    def __enter__(self) -> "Statements":
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            wanted = code.co_filename.startswith(str(ROOT))
            left = self._left[code] = set(_lines(code)) if wanted else set()
            self._seen[code] = set()
        if not left:
            return None
        seen = self._seen[code]

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            number = frame.f_lineno
            seen.add(number)
            left.discard(number)
            return line

        return line

    def by_package(self) -> dict[str, tuple[int, int]]:
        """Executed and all, of functions and methods."""
        seen: dict[str, set[int]] = {}
        for code, lines in self._seen.items():
            seen.setdefault(code.co_filename, set()).update(lines)
        found = {}
        for package in PACKAGES:
            executed = total = 0
            for path in sorted((ROOT / package).rglob("*.py")):
                name = str(path.relative_to(ROOT))
                if name in _UNREACHED or (package == "net/peers" and "peers" not in name):
                    continue
                lines = set(_statements(path))
                total += len(lines)
                executed += len(lines & seen.get(str(path), set()))
            found[package] = (executed, total)
        return found


def _lines(code: CodeType) -> Iterator[int]:
    """Where its statements begin, without the line of its `def`."""
    for _, _, number in code.co_lines():
        if number is not None and number != code.co_firstlineno:
            yield number


def _statements(path: Path) -> Iterator[int]:
    """Those inside of functions: what a module does when it is imported says nothing."""
    module = compile(path.read_text(), str(path), "exec")
    waiting = [module]
    while waiting:
        code = waiting.pop()
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
        is_function = code.co_flags & 0x02 and code.co_name != "<genexpr>"
        if code is not module and is_function:
            yield from _lines(code)
