"""Sorts test files by what they need, so that kinds that disturb each other never meet.

pure       no process, socket, thread, sleep or real clock; what a file is that says nothing
inprocess  sockets, threads and real time, in the process of the test
system     real broker processes, or other commands
spark      a Spark session, or what its packages bring along
machine    root, Debian's packages and a network, to make machines: only with `make machines`

A file says its kind at its head: `pytestmark = pytest.mark.system`. `--kind` runs one of them.
"""

import functools
import re
from pathlib import Path
from typing import Final

import pytest

PURE, INPROCESS, SYSTEM, SPARK, MACHINE = KINDS = (
    "pure",
    "inprocess",
    "system",
    "spark",
    "machine",
)

_HEAD: Final = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)$", re.MULTILINE)
_KIND: Final = re.compile(r"\bpytest\.mark\.(inprocess|system|spark|machine)\b")


@functools.cache
def kind_of(path: Path) -> str:
    """Read from the text: to import a file of Spark's only to leave it out would take seconds."""
    head = _HEAD.search(path.read_text())
    found = _KIND.findall(head[1]) if head else []
    if len(found) > 1:
        raise pytest.UsageError(f"{path} is of several kinds: {', '.join(found)}")
    return found[0] if found else PURE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kind", choices=KINDS, help="run the tests of one kind only")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.getoption("kind")
    if wanted is None or not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    return True if kind_of(collection_path) != wanted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (wanted := config.getoption("kind")) is not None:
        # Files that are named one by one are never ignored.
        items[:] = [item for item in items if kind_of(item.path) == wanted]
    found = {kind_of(item.path) for item in items}
    if SPARK in found and len(found) > 1:
        others = ", ".join(sorted(found - {SPARK}))
        raise pytest.UsageError(
            "Spark changes signal handlers, logging and more of the process it runs in, so its"
            f" tests never share one with others ({others}). Choose a kind with --kind, or run"
            " everything with: make test"
        )
