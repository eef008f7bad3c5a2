"""Loads the adapters, and gives every test of this folder one shared broker and its own names."""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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


_HERE = Path(__file__).parent
_load("compat_clients", _HERE / "clients.py")
RawClient = _load("raw_client", _HERE.parent / "raw_client.py").RawClient

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Three partitions by default, so that auto-created topics have several too."""
    with Broker(settings={"TOPIC__PARTITIONS": "3"}) as started:
        yield started


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def raw(broker: Broker) -> Iterator[KafkaConnection]:
    with RawClient(broker.host, broker.port, client_id="compat") as opened:
        yield opened


@pytest.fixture
def topic(raw: Any, new_name: Callable[[str], str]) -> str:
    """A topic with one empty partition."""
    return raw.create_well(new_name("topic"))
