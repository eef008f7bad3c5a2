"""Gives the tests of this folder one shared broker.

That it is shared is part of the tests: whatever one of them does to it, it serves the next.
"""

from collections.abc import Iterator

import pytest

from moldau.testing.broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path_factory.mktemp("broker") / "data") as started:
        yield started
