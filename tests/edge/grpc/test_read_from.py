"""ReadFrom, over a real socket to a real broker."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import grpc
import pytest
from queue_worker import reason_of

from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stub(moldau_session_broker: Broker) -> Iterator[QueueStub]:
    with grpc.insecure_channel(moldau_session_broker.grpc_address) as channel:
        yield QueueStub(channel)


@pytest.fixture
def topic(stub: QueueStub, new_name: Callable[[str], str]) -> str:
    """Ten messages, one at each thousandth millisecond."""
    name = new_name("grpc-read")
    stub.CreateTopic(pb.CreateTopicRequest(topic=name), timeout=wait_seconds_max())
    send(stub, name, range(10))
    return name


def send(stub: QueueStub, topic: str, numbers: range) -> None:
    for number in numbers:
        message = pb.OutgoingMessage(value=b"%d" % number, timestamp_ms=1_000 * (number + 1))
        stub.Send(pb.SendRequest(topic=topic, message=message), timeout=wait_seconds_max())


def values(stub: QueueStub, **request: Any) -> list[int]:
    answers = list(stub.ReadFrom(pb.ReadFromRequest(**request), timeout=wait_seconds_max()))
    messages = [message for answer in answers for message in answer.messages]
    if messages:
        assert answers[-1].next_offset == messages[-1].offset + 1
    return [int(message.value) for message in messages]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({}, range(10)),
        ({"start": pb.EARLIEST}, range(10)),
        ({"start": pb.LATEST}, range(0)),
        ({"offset": 0}, range(10)),
        ({"offset": 7}, range(7, 10)),
        ({"offset": 10}, range(0)),
        ({"timestamp_ms": 0}, range(10)),
        ({"timestamp_ms": 4_500}, range(4, 10)),
        ({"timestamp_ms": 99_000}, range(0)),
        ({"offset": 2, "max_messages": 3}, range(2, 5)),
        ({"max_messages": 100}, range(10)),
    ],
)
def test_it_begins_at_the_given_offset_and_ends_at_the_end(
    stub: QueueStub, topic: str, place: dict[str, int], expected: range
) -> None:
    assert values(stub, topic=topic, **place) == list(expected)


@pytest.mark.parametrize(
    ("wrong", "status", "reason"),
    [
        ({"topic": ""}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"topic": "grpc-nowhere"}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"partition": 1}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"partition": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"offset": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"timestamp_ms": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"start": 9}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"max_messages": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"offset": 11}, grpc.StatusCode.OUT_OF_RANGE, "OUT_OF_RANGE"),
    ],
)
def test_a_place_that_is_not_there_is_refused(
    stub: QueueStub, topic: str, wrong: dict[str, Any], status: grpc.StatusCode, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        values(stub, **({"topic": topic} | wrong))
    assert caught.value.code() is status
    assert reason_of(caught.value) == reason


def test_a_follower_gets_what_comes(stub: QueueStub, topic: str) -> None:
    request = pb.ReadFromRequest(topic=topic, offset=9, follow=True)
    answers = stub.ReadFrom(request, timeout=wait_seconds_max())
    assert [message.offset for message in next(answers).messages] == [9]
    sending = threading.Thread(target=send, args=(stub, topic, range(10, 12)))
    sending.start()
    heard: list[int] = []
    while len(heard) < 2:
        heard += [message.offset for message in next(answers).messages]
    assert heard == [10, 11]
    sending.join(wait_seconds_max())
    answers.cancel()
    assert values(stub, topic=topic, offset=11) == [11]


def test_who_follows_ends_after_as_many_as_were_asked_for(stub: QueueStub, topic: str) -> None:
    assert values(stub, topic=topic, offset=8, max_messages=2, follow=True) == [8, 9]


def test_much_comes_in_answers_that_any_client_takes(
    stub: QueueStub, topic: str, moldau_session_broker: Broker
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": moldau_session_broker.bootstrap, "compression.type": "gzip"}
    )
    for _ in range(150):
        producer.produce(
            topic, bytes(60_000), headers=[("h", b"1"), (b"\xff".decode("latin1"), None)]
        )
    assert producer.flush(wait_seconds_max()) == 0
    answers = list(
        stub.ReadFrom(pb.ReadFromRequest(topic=topic, offset=10), timeout=wait_seconds_max())
    )
    offsets = [message.offset for answer in answers for message in answer.messages]
    assert offsets == list(range(10, 160))
    assert max(answer.ByteSize() for answer in answers) < 2 * 1024 * 1024
    assert [answer.next_offset for answer in answers] == [
        answer.messages[-1].offset + 1 for answer in answers
    ]


def test_a_stop_ends_who_follows(moldau_broker: Broker) -> None:
    with grpc.insecure_channel(moldau_broker.grpc_address) as channel:
        stub = QueueStub(channel)
        stub.CreateTopic(pb.CreateTopicRequest(topic="t"), timeout=wait_seconds_max())
        send(stub, "t", range(1))
        answers = stub.ReadFrom(
            pb.ReadFromRequest(topic="t", follow=True), timeout=wait_seconds_max()
        )
        next(answers)
        stopping = threading.Thread(target=moldau_broker.stop)
        stopping.start()
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        stopping.join(wait_seconds_max())
    assert "Traceback" not in moldau_broker.output
