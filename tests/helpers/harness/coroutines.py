"""Runs `async def` tests, each on a fresh event loop: a pure one in virtual time."""

import asyncio
import inspect
from typing import Any

import pytest

from harness.kinds import PURE, kind_of
from harness.virtual_loop import run_virtually


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    run = run_virtually if kind_of(pyfuncitem.path) == PURE else asyncio.run
    run(test(**arguments))
    return True
