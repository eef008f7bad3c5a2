"""Runs `async def` tests, and gives tests on a shared broker names and connections."""

import asyncio
import functools
import inspect
import itertools
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from moldau.testing.broker import Broker
from raw_client import RawClient

_numbers = itertools.count(1)
SPARK = Path(__file__).parent / "spark"

# A shell that runs the tests in its background has them ignore Ctrl-C, and every command that they
# start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes any example slow: time is no reason to fail.
settings.register_profile("moldau", deadline=None)
settings.load_profile("moldau")

_LONGEST_FIRST = (
    "tests/system/",
    "tests/faults/test_short.py",
    "tests/faults/",
    "tests/compat/",
    "tests/sim/",
    "tests/cli/",
    "tests/test_docs.py",
    "tests/client/",
    "tests/edge/",
)
"""After what needs Spark. A long file that is handed out last runs alone, while the other processes
have nothing to do."""
_WORLDS = (
    "tests/faults/test_short.py",
    "tests/faults/test_network.py",
    "tests/faults/test_world.py",
)
"""One at a time: another process would only wait for it, see tests/faults/conftest.py."""


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise files with many tests come first: those of pure logic, the shortest.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        found = (at for at, name in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(name))
        return -1 if _has_session(item.path) else next(found, len(_LONGEST_FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=turn)


@functools.cache
def _has_session(path: Path) -> bool:
    """Whether tests of a file use the session of Spark, which has to start but once, and is slow
    until it is warm."""
    return path.is_relative_to(SPARK) and re.search(r"\bspark: ", path.read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By files, but some of them as one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            if path in _WORLDS:
                return "worlds"
            return "spark" if _has_session(config.rootpath / path) else path

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine runs on a fresh event loop, without a plugin of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(test(**arguments))
    return True


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawClient]:
    """A raw connection to the broker of the folder."""
    with RawClient(broker.host, broker.port, client_id="test") as opened:
        yield opened
