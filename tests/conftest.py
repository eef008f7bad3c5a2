"""Loads the harness, runs `async def` tests, and gives tests on a shared broker names."""

import asyncio
import inspect
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from harness.kinds import PURE, kind_of
from harness.virtual_loop import run_virtually

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from raw_client import RawClient

pytest_plugins = [
    "harness.purity",
    "harness.kinds",
    "harness.leaks",
    "harness.order",
    "harness.results",
]

_numbers = itertools.count(1)

# A shell that runs the tests in its background has them ignore Ctrl-C, and every command that they
# start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine runs on a fresh event loop: a pure one in virtual time."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    run = run_virtually if kind_of(pyfuncitem.path) == PURE else asyncio.run
    run(test(**arguments))
    return True


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def raw(broker: "Broker") -> Iterator["RawClient"]:
    """A raw connection to the broker of the folder."""
    from raw_client import RawClient

    with RawClient(broker.host, broker.port, client_id="test") as opened:
        yield opened
