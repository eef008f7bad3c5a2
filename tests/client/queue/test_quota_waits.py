"""A client over its quota waits as long as the brokers say, and then goes on; so does a proxy."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from queue_brokers import FakeCluster

from moldau import QueueClient
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.proxy.server import Proxy
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

SECONDS = 0.6
"""The backoff of clients would be over many times."""


@pytest.fixture
def proxy(brokers: FakeCluster) -> Iterator[Proxy]:
    made = Proxy("127.0.0.1:0", brokers.addresses, seconds_max=wait_seconds_max())
    brokers.run(made.start())
    yield made
    brokers.run(made.stop())


@pytest.fixture(params=["brokers", "proxy"])
def client(request: pytest.FixtureRequest, brokers: FakeCluster) -> Iterator[QueueClient]:
    addresses = brokers.addresses
    if request.param == "proxy":
        addresses = [f"127.0.0.1:{request.getfixturevalue('proxy').port}"]
    with QueueClient(addresses, timeout=wait_seconds_max(), refresh=0.5) as made:
        yield made


def limit(brokers: FakeCluster, call: str) -> None:
    for broker in brokers.brokers.values():
        broker.quota.seconds[call] = SECONDS


def early(brokers: FakeCluster, call: str) -> list[int]:
    """Calls of each broker that came too early; of all that refused one."""
    quotas = [each.quota for each in brokers.brokers.values()]
    return [quota.early[call] for quota in quotas if quota.refused(call)]


def values(brokers: FakeCluster) -> list[bytes]:
    return sorted(each.value for part in brokers.topics["jobs"] for each in part.log)


@pytest.mark.safety
def test_a_message_is_sent_once_after_the_wait(brokers: FakeCluster, client: QueueClient) -> None:
    limit(brokers, "Send")
    client.send("jobs", "a")
    assert values(brokers) == [b"a"]
    assert set(early(brokers, "Send")) == {0}


@pytest.mark.safety
def test_many_messages_are_sent_once_after_the_wait(
    brokers: FakeCluster, client: QueueClient
) -> None:
    limit(brokers, "SendBatch")
    sent = [f"{number:04}" for number in range(3000)]
    assert len(client.send_many("jobs", sent)) == len(sent)
    assert values(brokers) == [each.encode() for each in sent]
    assert set(early(brokers, "SendBatch")) == {0}


@pytest.mark.safety
@pytest.mark.parametrize("call", ["Connect", "Poll", "Ack"])
def test_every_message_is_polled_and_acked_once(
    brokers: FakeCluster, client: QueueClient, call: str
) -> None:
    sent = sorted(f"{number}" for number in range(20))
    client.send_many("jobs", sent)
    limit(brokers, call)
    got: list[str] = []
    with client.connect("g", "jobs") as worker:
        while len(got) < len(sent):
            for message in worker.poll(5, 1):
                message.ack()
                got.append(message.text)
    assert sorted(got) == sent
    assert set(early(brokers, call)) == {0}


def test_what_all_brokers_are_asked_waits_for_all(
    brokers: FakeCluster, client: QueueClient
) -> None:
    with client.connect("g", "jobs"):
        limit(brokers, "Stats")
        assert client.stats("g").consumers == 1
    assert early(brokers, "Stats") == [0, 0]


def test_a_reader_waits(brokers: FakeCluster, client: QueueClient) -> None:
    client.send_many("jobs", [("key", "a"), ("key", "b")])
    limit(brokers, "ReadFrom")
    read = [message.text for partition in (0, 1) for message in client.read_from("jobs", partition)]
    assert read == ["a", "b"]
    assert set(early(brokers, "ReadFrom")) == {0}


def test_a_poll_that_ends_before_the_wait_is_empty_and_other_calls_say_how_long(
    brokers: FakeCluster, proxy: Proxy
) -> None:
    for call in ("Poll", "Send"):
        for broker in brokers.brokers.values():
            broker.quota.seconds[call] = 2 * wait_seconds_max()
    with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        stub: Any = QueueStub(channel)
        connect = pb.ConnectRequest(group="g", topics=["jobs"], mode=pb.QUEUE, client_id="c")
        consumer = stub.Connect(connect, timeout=wait_seconds_max()).consumer_id
        for wait_ms in (0, 200):
            poll = pb.PollRequest(group="g", consumer_id=consumer, wait_ms=wait_ms)
            assert not stub.Poll(poll, timeout=wait_seconds_max()).messages
        send = pb.SendRequest(topic="jobs", message=pb.OutgoingMessage(value=b"x"))
        with pytest.raises(grpc.RpcError) as refused:
            stub.Send(send, timeout=1)
        status: Any = refused.value
        assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(status.trailing_metadata())["moldau-retry-ms"]) > 0
