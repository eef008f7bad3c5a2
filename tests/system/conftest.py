"""Gives the tests of this folder one shared broker.

That it is shared is part of the tests: whatever one of them does to it, it serves the next.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing.broker import Broker

# The fault scenarios stand beside the package, not in it.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path_factory.mktemp("broker") / "data") as started:
        yield started
