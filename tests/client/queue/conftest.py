"""Brokers that speak the queue API and obey, for tests of what clients make of their answers."""

from collections.abc import Iterator

import pytest
from queue_brokers import FakeCluster, fake_cluster

from moldau import QueueClient
from moldau.testing.waiting import wait_seconds_max


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        cluster.create("jobs", 2)
        yield cluster


@pytest.fixture
def client(brokers: FakeCluster) -> Iterator[QueueClient]:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max(), refresh=0.5) as made:
        yield made
