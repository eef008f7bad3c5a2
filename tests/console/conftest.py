"""One browser for the tests of a file."""

from collections.abc import Iterator

import pytest
from console_page import browsing
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found
