"""Writes what a run came to into the file of `--results`, for who runs several of them.

It says of each failed test whether it may be repeated: only one that needs real processes, and can
fail because the machine was slow. What looks for lost, doubled or reordered messages carries the
marker `safety`, and is never repeated: that it failed once is the finding.
"""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from harness.kinds import SPARK, SYSTEM, kind_of

NEVER_REPEATED = {"safety", "hypothesis"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write the outcome to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Results(path, config.rootpath), "moldau-results")


class _Results:
    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._skips: Counter[str] = Counter()
        """By reason."""
        self._failed: dict[str, bool] = {}
        """By test, whether it may be repeated."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = self._is_repeatable(report)
        elif report.skipped:
            self._counts["skipped"] += 1
            self._skips[_reason(report)] += 1
        elif report.when == "call":
            self._counts["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = False

    def pytest_sessionfinish(self) -> None:
        outcome = {
            "passed": self._counts["passed"],
            "skipped": self._counts["skipped"],
            "skips": self._skips,
            "failed": self._failed,
            "seconds": time.monotonic() - self._began,
        }
        self._path.write_text(json.dumps(outcome))

    def _is_repeatable(self, report: pytest.TestReport) -> bool:
        kind = kind_of(self._root / report.nodeid.partition("::")[0])
        return kind in (SYSTEM, SPARK) and not NEVER_REPEATED & report.keywords.keys()


def _reason(report: pytest.TestReport) -> str:
    found = report.longrepr
    return found[2].removeprefix("Skipped: ") if isinstance(found, tuple) else str(found)
