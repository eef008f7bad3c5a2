"""Whatever bytes a client sends to whichever call: it hears a status, and the broker goes on."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpc_world import Door, opened
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.queues.types import ErrorReason, QueueRefusedError
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

TOPIC = "arbitrary"
WHO: Any = {"group": "g", "consumer_id": "c"}
MESSAGE = pb.OutgoingMessage(key=b"k", value=b"v", headers=[pb.Header(key="h", value=b"1")])

VALID: dict[str, Any] = {
    "CreateTopic": pb.CreateTopicRequest(topic=TOPIC, partitions=2, configs={"a": "b"}),
    "Send": pb.SendRequest(topic=TOPIC, message=MESSAGE, acks=pb.ACKS_LEADER, timeout_ms=9),
    "SendBatch": pb.SendBatchRequest(topic=TOPIC, messages=[MESSAGE] * 3, timeout_ms=9),
    "Connect": pb.ConnectRequest(
        group="g", topics=[TOPIC], mode=pb.QUEUE, settings=pb.QueueSettings(visibility_ms=500)
    ),
    "Disconnect": pb.DisconnectRequest(**WHO),
    "Heartbeat": pb.HeartbeatRequest(
        **WHO, epoch=1, owned=[pb.TopicPartitions(topic=TOPIC, partitions=[0])]
    ),
    "Poll": pb.PollRequest(**WHO, max_messages=2, visibility_ms=100),
    "Ack": pb.AckRequest(**WHO, tokens=[bytes(50)]),
    "Nack": pb.NackRequest(**WHO, tokens=[b"\x02" + bytes(50)], delay_ms=5, reason="r"),
    "Extend": pb.ExtendRequest(**WHO, tokens=[b"\x01" + bytes(20)], visibility_ms=5),
    "Stats": pb.StatsRequest(group="g"),
    "ListGroups": pb.ListGroupsRequest(topic=TOPIC),
    "Peek": pb.PeekRequest(group="g", topic=TOPIC, max_messages=3),
    "DeleteGroup": pb.DeleteGroupRequest(group="g"),
    "ReadFrom": pb.ReadFromRequest(topic=TOPIC, offset=1, max_messages=3),
    "Topology": pb.TopologyRequest(topics=[TOPIC]),
    "ManageBrokers": pb.ManageBrokersRequest(remove=pb.RemoveBroker(id=9)),
}
CHANGES_THE_CLUSTER = ("CreateTopic", "ManageBrokers")
STREAMS = pb.DESCRIPTOR.services_by_name["Queue"].methods_by_name


def test_every_call_is_tried() -> None:
    assert set(VALID) == set(STREAMS)


@st.composite
def mutated(draw: st.DrawFn, request: Any) -> bytes:
    """A request that was right, with some bytes changed, left out or doubled."""
    data = bytearray(request.SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("change", "cut", "insert", "end"))):
            case "change" if data:
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case _:
                del data[at:]
    return bytes(data)


def anything(method: str) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), mutated(VALID[method]))


def ask(channel: Any, method: str, data: list[bytes]) -> None:
    """A broker that is well says nothing of its own troubles."""
    found, path = STREAMS[method], f"/moldau.v1.Queue/{method}"
    status = grpc.StatusCode.OK
    try:
        if found.client_streaming:
            list(channel.stream_stream(path)(iter(data), timeout=wait_seconds_max()))
        elif found.server_streaming:
            # Mutated, it may ask to follow for ever.
            list(channel.unary_stream(path)(data[0], timeout=0.5))
        else:
            channel.unary_unary(path)(data[0], timeout=wait_seconds_max())
    except grpc.RpcError as error:
        status = error.code()
    assert status not in _TROUBLES


_TROUBLES = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with grpc.insecure_channel(started.grpc_address) as channel:
            stub = QueueStub(channel)
            stub.CreateTopic(
                pb.CreateTopicRequest(topic=TOPIC, partitions=2), timeout=wait_seconds_max()
            )
            sent = pb.SendBatchRequest(topic=TOPIC, messages=[MESSAGE] * 20)
            list(stub.SendBatch(iter([sent]), timeout=wait_seconds_max()))
        yield started
        assert started.is_running
        assert "Traceback" not in started.output


@pytest.fixture(scope="module")
def channel(broker: Broker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.grpc_address) as opened_channel:
        yield opened_channel


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """For what must not happen to a real broker."""

    async def create(*arguments: object, **named: object) -> object:
        raise QueueRefusedError(ErrorReason.BUSY)

    with opened(broker={"topics": SimpleNamespace(create=create)}) as found:
        yield found


@pytest.mark.parametrize("method", [name for name in VALID if name not in CHANGES_THE_CLUSTER])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_broker_answers_any_bytes_and_goes_on(
    channel: grpc.Channel, method: str, data: st.DataObject
) -> None:
    count = 2 if STREAMS[method].client_streaming else 1
    ask(channel, method, [data.draw(anything(method)) for _ in range(count)])


@pytest.mark.parametrize("method", CHANGES_THE_CLUSTER)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_server_answers_any_bytes_that_would_change_the_cluster(
    door: Door, method: str, data: st.DataObject
) -> None:
    ask(door.channel, method, [data.draw(anything(method))])


def test_a_broker_that_was_asked_nonsense_serves_as_before(
    broker: Broker, channel: grpc.Channel
) -> None:
    told = QueueStub(channel).Topology(
        pb.TopologyRequest(topics=[TOPIC]), timeout=wait_seconds_max()
    )
    assert told.brokers[0].is_alive
    assert "defect" not in broker.output
