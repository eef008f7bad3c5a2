"""Gives the tests of this folder one shared broker, whose topics have three partitions."""

from collections.abc import Callable, Iterator

import pytest

from moldau.testing.broker import Broker
from raw_client import RawClient


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(settings={"TOPIC__PARTITIONS": "3"}) as started:
        yield started


@pytest.fixture
def topic(raw: RawClient, new_name: Callable[[str], str]) -> str:
    """A topic with one empty partition."""
    return raw.create_well(new_name("topic"))
