"""Fails a test that leaves the process in another state than it found it in.

Fixtures of a wider scope than one test are set up before the first look and torn down after the
last, so a broker that tests share is no leak. What libraries make once and keep for the life of a
process is made before the first test.
"""

import _signal  # type: ignore[import-not-found]
import asyncio
import gc
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from harness.kinds import INPROCESS, PURE, SPARK, SYSTEM, kind_of
from moldau.testing.waiting import wait_seconds_max

_SIGNALS: Final = [int(number) for number in signal.valid_signals() - {signal.SIGALRM}]
"""But that by which pytest-timeout wakes up, which is its own."""
_OF_PYTEST: Final = b"PYTEST_CURRENT_TEST"


# Twice for each of thousands of tests: `signal` would make enums of all numbers first, and
# `os.environ` text of all bytes.
def _signal_handlers() -> dict[Any, Any]:
    return {number: _signal.getsignal(number) for number in _SIGNALS}


def _environment() -> dict[Any, Any]:
    found: dict[Any, Any] = os.environ._data.copy()  # type: ignore[attr-defined]
    found.pop(_OF_PYTEST, None)
    return found


def _working_directory() -> dict[Any, Any]:
    return {".": os.getcwd()}


def _logging_handlers() -> dict[Any, Any]:
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    return {
        name: handlers
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger)
        and (handlers := [one for one in logger.handlers if _counts(one)])
    }


def _counts(handler: logging.Handler) -> bool:
    """Not pytest's own, nor one that does nothing: libraries add that when they are imported."""
    is_of_pytest = type(handler).__module__.startswith("_pytest.")
    return not is_of_pytest and not isinstance(handler, logging.NullHandler)


def _event_loop_policy() -> dict[Any, Any]:
    # Not asked by its function, which makes one.
    policy = asyncio.events._event_loop_policy  # type: ignore[attr-defined]
    is_default = policy is None or type(policy) is asyncio.DefaultEventLoopPolicy
    return {} if is_default else {"policy": policy}


def _open_files() -> dict[Any, Any]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The listing's own.
            continue
        # By these, threads of libraries wake each other: gRPC makes and ends them when it likes.
        if not target.startswith("anon_inode:"):
            found[int(name)] = target
    return found


def _child_processes() -> dict[Any, Any]:
    """How many, since a broker that tests share may be killed and started anew."""
    running = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except FileNotFoundError:
            # The thread ended, or the kernel does not tell.
            continue
        running += sum(not _has_ended(pid) for pid in pids)
    return {"running": running}


def _has_ended(pid: str) -> bool:
    """Whether it only waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


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
    if (after := _look()) == before:
        return []
    found = []
    for name, now in after.items():
        then = before[name]
        if name == "child processes" and now["running"] <= then["running"]:
            continue
        for key in sorted(then.keys() | now.keys(), key=str):
            if then.get(key) != now.get(key):
                found.append(f"{name}: {key} was {then.get(key)!r}, is {now.get(key)!r}")
    return found


@pytest.fixture(scope="session", autouse=True)
def _made_once_per_process(request: pytest.FixtureRequest) -> None:
    # A broker in this process sets it, for the loudest library that it brings.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if request.config.getoption("kind") == PURE:
        return
    import grpc  # noqa: F401
    import uvloop

    import moldau.testing.ports  # noqa: F401

    # With its first loop, libuv opens a pipe that all loops share.
    uvloop.new_event_loop().close()


@pytest.fixture(scope="module", autouse=True)
def _shared_by_the_process(request: pytest.FixtureRequest) -> None:
    if kind_of(request.path) in (INPROCESS, SYSTEM):
        from queue_brokers import keep_what_a_process_shares

        keep_what_a_process_shares()


@pytest.fixture(autouse=True)
def _leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _look()
    yield
    # Pure tests have nothing that would go away by itself, but for cycles of garbage.
    patience = 0.0 if kind_of(request.path) == PURE else wait_seconds_max() / 6
    began, is_collected, pause = time.perf_counter(), False, 0.02
    while changes := [change for change in _changes(before) if not _is_excused(change, request)]:
        if is_collected and time.perf_counter() - began >= patience:
            pytest.fail("the test left behind:\n  " + "\n  ".join(changes), pytrace=False)
        gc.collect()
        is_collected = True
        if patience:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


def _is_excused(change: str, request: pytest.FixtureRequest) -> bool:
    if not change.startswith("open files: "):
        return False
    # A thread that logs a traceback reads source files, at any time.
    if change.endswith(".py', is None"):
        return True
    # Java holds on to objects of Python until it collects its own garbage.
    if kind_of(request.path) == SPARK:
        return True
    # librdkafka wakes its threads by pipes; libuv keeps /dev/null open in reserve.
    is_of_a_client = re.search(r"'(socket:\[|pipe:\[|/dev/null')", change) is not None
    # What a test before this one shared may be closed late.
    return is_of_a_client and (change.endswith(", is None") or _shares_clients(request))


def _shares_clients(request: pytest.FixtureRequest) -> bool:
    """Whether clients or loops outlive the test: those that tests share, and those of libraries
    that talk to real brokers, connect and close when they like, in threads of their own."""
    if kind_of(request.path) == SYSTEM:
        return True
    return any(
        definitions[-1].scope != "function" and not name.startswith("_")
        for name, definitions in request.node._fixtureinfo.name2fixturedefs.items()
        if name != "tmp_path_factory"
    )
