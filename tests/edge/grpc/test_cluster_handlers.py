"""CreateTopic, Topology and ManageBrokers; and that any broker of a cluster serves what it can."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import pytest
from open_sessions import session_over
from queue_worker import reason_of

from grpc_world import Door, opened
from moldau.proto.trailers import HINT_TRAILER, REASON_TRAILER, decode_text
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stub(moldau_session_broker: Broker) -> Iterator[QueueStub]:
    with grpc.insecure_channel(moldau_session_broker.grpc_address) as channel:
        yield QueueStub(channel)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with opened() as found:
        yield found


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), reason_of(caught.value)


def test_a_topic_is_made_once(stub: QueueStub, new_name: Callable[[str], str]) -> None:
    name = new_name("grpc-topic")
    request = pb.CreateTopicRequest(topic=name, partitions=2, configs={"retention.ms": "1000"})
    made = stub.CreateTopic(request, timeout=wait_seconds_max())
    assert made == pb.CreateTopicResponse(topic=name, partitions=2, replication_factor=1)
    again = refused(lambda: stub.CreateTopic(request, timeout=wait_seconds_max()))
    assert again == (grpc.StatusCode.ALREADY_EXISTS, "TOPIC_EXISTS")
    # It can be written to at once.
    message = pb.OutgoingMessage(value=b"v")
    assert (
        stub.Send(pb.SendRequest(topic=name, message=message), timeout=wait_seconds_max()).offset
        == 0
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topic": "a/b"},
        {"topic": ".."},
        {"topic": "x" * 250},
        {"partitions": -1},
        {"partitions": 10_001},
        {"replication_factor": -1},
        {"replication_factor": 9},
        {"configs": {"no.such": "1"}},
        {"configs": {"retention.ms": "soon"}},
    ],
)
def test_a_topic_that_cannot_be_is_refused(stub: QueueStub, wrong: dict[str, Any]) -> None:
    request = pb.CreateTopicRequest(**({"topic": "grpc-never"} | wrong))
    found = refused(lambda: stub.CreateTopic(request, timeout=wait_seconds_max()))
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")


def test_the_topology_shows_brokers_and_the_topics_that_are_asked_for(
    stub: QueueStub, moldau_session_broker: Broker, new_name: Callable[[str], str]
) -> None:
    first, second = new_name("grpc-seen"), new_name("grpc-seen")
    for name in (first, second):
        stub.CreateTopic(
            pb.CreateTopicRequest(topic=name, partitions=2), timeout=wait_seconds_max()
        )
    told = stub.Topology(pb.TopologyRequest(topics=[second, second]), timeout=wait_seconds_max())
    (broker,) = told.brokers
    assert broker == pb.BrokerInfo(
        id=1,
        kafka_address=moldau_session_broker.bootstrap,
        grpc_address=moldau_session_broker.grpc_address,
        http_address=moldau_session_broker.http_address,
        is_alive=True,
    )
    (topic,) = told.topics
    assert (topic.name, len(topic.topic_id)) == (second, 16)
    assert [partition.leader for partition in topic.partitions] == [1, 1]
    everything = stub.Topology(pb.TopologyRequest(), timeout=wait_seconds_max())
    assert {first, second} <= {topic.name for topic in everything.topics}
    assert everything.version > 0
    assert everything.controller == 1
    unknown = pb.TopologyRequest(topics=["grpc-nowhere"])
    found = refused(lambda: stub.Topology(unknown, timeout=wait_seconds_max()))
    assert found == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC")


def test_a_broker_is_let_go(door: Door) -> None:
    request = pb.ManageBrokersRequest(remove=pb.RemoveBroker(id=3))
    assert door.stub.ManageBrokers(request, timeout=wait_seconds_max()).id == 3
    assert door.cluster.drained == [3]


def test_a_broker_that_is_not_there_cannot_leave(stub: QueueStub) -> None:
    request = pb.ManageBrokersRequest(remove=pb.RemoveBroker(id=99))
    status, _ = refused(lambda: stub.ManageBrokers(request, timeout=wait_seconds_max()))
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_no_broker_is_let_in_without_a_proof(door: Door) -> None:
    """Earlier versions had `add`, which registered whoever was named."""
    add = bytes([1 << 3 | 2, 5, 1 << 3 | 2, 3]) + b"new"
    request = pb.ManageBrokersRequest.FromString(add)
    found = refused(lambda: door.stub.ManageBrokers(request, timeout=wait_seconds_max()))
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert not hasattr(session_over().cluster, "join")


def test_nothing_to_do_is_refused(door: Door) -> None:
    found = refused(
        lambda: door.stub.ManageBrokers(pb.ManageBrokersRequest(), timeout=wait_seconds_max())
    )
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")


def test_any_broker_takes_messages_and_the_leader_is_named_to_readers_at_other_brokers(
    moldau_cluster: Cluster,
) -> None:
    brokers = {broker.number: broker for broker in moldau_cluster.brokers}
    leader = 0
    for number, broker in brokers.items():
        with grpc.insecure_channel(broker.grpc_address) as channel:
            stub = QueueStub(channel)
            if number == 1:
                stub.CreateTopic(pb.CreateTopicRequest(topic="t"), timeout=wait_seconds_max())
                told = stub.Topology(pb.TopologyRequest(topics=["t"]), timeout=wait_seconds_max())
                leader = told.topics[0].partitions[0].leader
                addresses = {broker.id: broker.grpc_address for broker in told.brokers}
                assert addresses == {n: b.grpc_address for n, b in brokers.items()}
            message = pb.OutgoingMessage(value=b"%d" % number)
            answer = stub.Send(
                pb.SendRequest(topic="t", message=message), timeout=wait_seconds_max()
            )
            assert answer.offset == number - 1
            reading = stub.ReadFrom(pb.ReadFromRequest(topic="t"), timeout=wait_seconds_max())
            if number == leader:
                values = [m.value for answer in reading for m in answer.messages]
                assert values == [b"%d" % n for n in range(1, number + 1)]
                continue
            with pytest.raises(grpc.RpcError) as caught:
                list(reading)
            trailers: dict[str, Any] = dict(cast(Any, caught.value).trailing_metadata())
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert trailers[REASON_TRAILER] == "NOT_LEADER"
            assert brokers[leader].grpc_address in decode_text(trailers[HINT_TRAILER])
