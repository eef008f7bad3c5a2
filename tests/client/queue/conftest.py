"""Brokers that speak the queue API and obey, for tests of what clients make of their answers."""

from collections.abc import Iterator

import pytest
from queue_brokers import FakeCluster, fake_cluster

from moldau import QueueClient
from moldau.testing.waiting import wait_seconds_max


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    # A machine that stands still is no broker that is slow to answer.
    monkeypatch.setattr("moldau.client.queue.poller._QUICK_SECONDS_MAX", wait_seconds_max())
    with fake_cluster() as cluster:
        cluster.create("jobs", 2)
        yield cluster


@pytest.fixture
def client(brokers: FakeCluster) -> Iterator[QueueClient]:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max(), refresh=0.5) as made:
        yield made
