"""A proxy in front of two brokers that obey, and a plain gRPC client that knows the proxy only."""

from collections.abc import Iterator

import grpc
import pytest
from queue_brokers import FakeCluster, fake_cluster

from moldau.proto.v1 import queue_pb2_grpc
from moldau.proxy.server import Proxy
from moldau.testing.waiting import wait_seconds_max


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    # A machine that stands still is no broker that is slow to answer.
    monkeypatch.setattr("moldau.client.queue.poller._QUICK_SECONDS_MAX", wait_seconds_max())
    with fake_cluster() as cluster:
        cluster.create("jobs", 2)
        yield cluster


@pytest.fixture
def proxy(brokers: FakeCluster) -> Iterator[Proxy]:
    made = Proxy(
        "127.0.0.1:0", brokers.addresses, seconds_max=wait_seconds_max(), refresh_seconds=0.5
    )
    brokers.run(made.start())
    yield made
    brokers.run(made.stop())


@pytest.fixture
def channel(proxy: Proxy) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as made:
        yield made


@pytest.fixture
def stub(channel: grpc.Channel) -> queue_pb2_grpc.QueueStub:
    return queue_pb2_grpc.QueueStub(channel)
