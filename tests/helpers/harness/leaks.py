"""Fails a test that leaves the process in another state than it found it in.

Fixtures of a wider scope than one test are set up before the first look and torn down after the
last, so a broker that tests share is no leak.
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from harness.kinds import PURE, kind_of
from moldau.testing.waiting import wait_seconds_max

_SIGNALS: Final = sorted(signal.valid_signals())
_OF_PYTEST: Final = "PYTEST_CURRENT_TEST"


def _signal_handlers() -> dict[Any, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _environment() -> dict[Any, Any]:
    return {name: value for name, value in os.environ.items() if name != _OF_PYTEST}


def _working_directory() -> dict[Any, Any]:
    return {".": os.getcwd()}


def _logging_handlers() -> dict[Any, Any]:
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    return {
        name: handlers
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger)
        and (handlers := [one for one in logger.handlers if not _is_of_pytest(one)])
    }


def _is_of_pytest(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest.")


def _event_loop_policy() -> dict[Any, Any]:
    # Not asked by its function, which makes one.
    policy = asyncio.events._event_loop_policy
    is_default = policy is None or type(policy) is asyncio.DefaultEventLoopPolicy
    return {} if is_default else {"policy": policy}


def _open_files() -> dict[Any, Any]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The listing's own.
            continue
    return found


def _child_processes() -> dict[Any, Any]:
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except FileNotFoundError:
            # The thread ended, or the kernel does not tell.
            continue
        found |= {int(pid): "running" for pid in pids}
    return found


_PROBES: Final[dict[str, Callable[[], dict[Any, Any]]]] = {
    "signal handlers": _signal_handlers,
    "environment": _environment,
    "working directory": _working_directory,
    "logging handlers": _logging_handlers,
    "event loop policy": _event_loop_policy,
    "open files": _open_files,
    "child processes": _child_processes,
}


def _look() -> dict[str, dict[Any, Any]]:
    return {name: probe() for name, probe in _PROBES.items()}


def _changes(before: dict[str, dict[Any, Any]]) -> list[str]:
    found = []
    for name, now in _look().items():
        then = before[name]
        for key in sorted(then.keys() | now.keys(), key=str):
            if then.get(key) != now.get(key):
                found.append(f"{name}: {key} was {then.get(key)!r}, is {now.get(key)!r}")
    return found


@pytest.fixture(autouse=True)
def _leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _look()
    yield
    if not (changes := _changes(before)):
        return
    # Cycles hold files until they are collected, and threads close theirs in a moment.
    gc.collect()
    patience = 0.0 if kind_of(request.path) == PURE else wait_seconds_max() / 6
    deadline = time.perf_counter() + patience
    while (changes := _changes(before)) and time.perf_counter() < deadline:
        time.sleep(0.02)
    if changes:
        pytest.fail("the test left behind:\n  " + "\n  ".join(changes), pytrace=False)
