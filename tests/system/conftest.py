"""Loads the raw client, and gives every test names of its own on a broker that all of them share.

That the broker is shared is part of the tests: whatever one of them does to it, it serves the next.
"""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from moldau.client.kafka.connection import KafkaConnection
from moldau.testing.broker import Broker


def _load(name: str, path: Path) -> ModuleType:
    """Tests are imported without packages, so a helper is registered by hand, under its name."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


RawClient = _load("raw_client", Path(__file__).parent.parent / "raw_client.py").RawClient

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def raw(broker: Broker) -> Iterator[KafkaConnection]:
    with RawClient(broker.host, broker.port, client_id="system") as opened:
        yield opened
