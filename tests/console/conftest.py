"""One browser for the tests of this folder: a process that runs them starts it once.

It ends before a test of another folder: playwright's event loop counts as running meanwhile.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from console_page import browsing
from playwright.sync_api import Browser

HERE: Final = Path(__file__).parent


class _Shared:
    def __init__(self) -> None:
        self._exits = ExitStack()
        self._browser: Browser | None = None

    def get(self) -> Browser:
        if self._browser is None:
            self._browser = self._exits.enter_context(browsing())
        return self._browser

    def end(self) -> None:
        self._browser = None
        self._exits.close()


_shared: Final = _Shared()


@pytest.fixture(scope="module")
def browser() -> Browser:
    return _shared.get()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != HERE:
        _shared.end()
