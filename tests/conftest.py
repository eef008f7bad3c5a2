"""Runs `async def` tests, and gives tests on a shared broker names and connections."""

import asyncio
import inspect
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from moldau.testing.broker import Broker
from raw_client import RawClient

_numbers = itertools.count(1)

# A shell that runs the tests in its background has them ignore Ctrl-C, and every command that they
# start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes any example slow: time is no reason to fail.
settings.register_profile("moldau", deadline=None)
settings.load_profile("moldau")


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
