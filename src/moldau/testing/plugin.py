"""The pytest fixtures of the package: a real broker, a cluster, and a topic."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.testing.broker import Broker
    from moldau.testing.cluster import Cluster

_topic_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def moldau_session_broker() -> Iterator[Broker]:
    """One broker for the whole test session; tests share it, each with its own topics."""
    from moldau.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def moldau_broker() -> Iterator[Broker]:
    """A broker for one test: free port, temporary directory, stopped afterwards."""
    from moldau.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def moldau_cluster() -> Iterator[Cluster]:
    """A cluster of three brokers for one test, which may kill, pause and add brokers."""
    from moldau.testing.cluster import Cluster

    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def moldau_topic(moldau_session_broker: Broker) -> str:
    """The name of a new topic with one partition on the session's broker."""
    from moldau.client.wire.client import KafkaClient

    name = f"test-{next(_topic_numbers)}"
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        client.create_topic(name, partitions=1)
    return name
