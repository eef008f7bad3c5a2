"""Send and SendBatch, over a real socket to a real broker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import grpc
import pytest
from queue_worker import reason_of

from grpc_world import opened
from moldau.api.quotas import ON_STEP
from moldau.data.append_forwarding import AppendResult
from moldau.edge.grpc import send_handlers
from moldau.edge.grpc.send_handlers import AHEAD_MAX
from moldau.model.errors import ErrorCode
from moldau.model.ids import TimestampMs
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.records.murmur2 import partition_of
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

PARTITIONS = 3


@pytest.fixture(scope="module")
def stub(moldau_session_broker: Broker) -> Iterator[QueueStub]:
    with grpc.insecure_channel(moldau_session_broker.grpc_address) as channel:
        yield QueueStub(channel)


@pytest.fixture
def topic(stub: QueueStub, new_name: Callable[[str], str]) -> str:
    name = new_name("grpc-send")
    request = pb.CreateTopicRequest(
        topic=name, partitions=PARTITIONS, configs={"max.message.bytes": "20000"}
    )
    stub.CreateTopic(request, timeout=wait_seconds_max())
    return name


def read(stub: QueueStub, topic: str, partition: int) -> list[pb.Message]:
    request = pb.ReadFromRequest(topic=topic, partition=partition)
    return [
        message
        for answer in stub.ReadFrom(request, timeout=wait_seconds_max())
        for message in answer.messages
    ]


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), reason_of(caught.value)


def test_a_message_is_stored_as_it_was_sent(stub: QueueStub, topic: str) -> None:
    sent = pb.OutgoingMessage(
        key=b"k",
        value=b"v",
        headers=[pb.Header(key="a", value=b"1"), pb.Header(key="b")],
        timestamp_ms=1_700_000_000_000,
        deliver_at_ms=1_800_000_000_000,
    )
    answer = stub.Send(pb.SendRequest(topic=topic, message=sent), timeout=wait_seconds_max())
    assert answer == pb.SendResponse(partition=partition_of(b"k", PARTITIONS), offset=0)
    (found,) = read(stub, topic, answer.partition)
    assert found == pb.Message(
        topic=topic,
        partition=answer.partition,
        offset=0,
        timestamp_ms=1_700_000_000_000,
        key=b"k",
        value=b"v",
        headers=[*sent.headers, pb.Header(key="moldau-deliver-at", value=b"1800000000000")],
    )


def test_null_and_empty_stay_apart(stub: QueueStub, topic: str) -> None:
    messages = [
        pb.OutgoingMessage(partition=1),
        pb.OutgoingMessage(partition=1, key=b"", value=b""),
    ]
    before = time.time() * 1000
    for message in messages:
        stub.Send(pb.SendRequest(topic=topic, message=message), timeout=wait_seconds_max())
    nothing, empty = read(stub, topic, 1)
    assert (nothing.HasField("key"), nothing.HasField("value")) == (False, False)
    assert (empty.HasField("key"), empty.HasField("value")) == (True, True)
    assert nothing.timestamp_ms >= int(before)


@pytest.mark.parametrize(
    ("acks", "offset"), [(pb.ACKS_ALL, 0), (pb.ACKS_LEADER, 0), (pb.ACKS_NONE, -1)]
)
def test_acks_are_as_asked_for(stub: QueueStub, topic: str, acks: Any, offset: int) -> None:
    message = pb.OutgoingMessage(partition=2, value=b"v")
    request = pb.SendRequest(topic=topic, message=message, acks=acks)
    assert stub.Send(request, timeout=wait_seconds_max()) == pb.SendResponse(
        partition=2, offset=offset
    )
    batch = pb.SendBatchRequest(topic=topic, messages=[message, message], acks=acks)
    (answer,) = stub.SendBatch(iter([batch]), timeout=wait_seconds_max())
    assert list(answer.offsets) == ([1, 2] if offset == 0 else [-1, -1])
    assert not answer.failures


MESSAGE = pb.OutgoingMessage(value=b"v")


@pytest.mark.parametrize(
    ("wrong", "status", "reason"),
    [
        ({"topic": ""}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"topic": "x" * 300}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"topic": "grpc-nowhere"}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"topic": "grpc/../nowhere"}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"message": None}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"acks": 7}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"timeout_ms": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"partition": -1}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"partition": 99}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC"),
        ({"timestamp_ms": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"deliver_at_ms": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"value": b"x" * 30_000}, grpc.StatusCode.INVALID_ARGUMENT, "TOO_LARGE"),
        (
            {"headers": [pb.Header(key="a")] * 1_001},
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_with_a_reason(
    stub: QueueStub, topic: str, wrong: dict[str, Any], status: grpc.StatusCode, reason: str
) -> None:
    fields: dict[str, Any] = {"topic": topic, "message": MESSAGE} | wrong
    inside = {name for name in wrong if name in pb.OutgoingMessage.DESCRIPTOR.fields_by_name}
    if inside:
        fields = {"topic": topic, "message": pb.OutgoingMessage(**wrong)}
    assert refused(lambda: stub.Send(pb.SendRequest(**fields), timeout=wait_seconds_max())) == (
        status,
        reason,
    )
    if wrong != {"message": None}:
        batch = dict(fields)
        batch["messages"] = [MESSAGE, batch.pop("message")]
        (answer,) = stub.SendBatch(iter([pb.SendBatchRequest(**batch)]), timeout=wait_seconds_max())
        (failure,) = answer.failures
        assert pb.Reason.Name(failure.reason) == reason
        assert not failure.is_uncertain
        assert 1 in failure.indexes
        assert answer.offsets[1] == answer.partitions[1] == -1


def test_a_request_that_fails_leaves_the_stream_and_its_order_alone(
    stub: QueueStub, topic: str
) -> None:
    requests = [
        pb.SendBatchRequest(topic=name, messages=[pb.OutgoingMessage(partition=0, value=b"%d" % n)])
        for n, name in enumerate([topic, "grpc-nowhere", topic, topic])
    ]
    requests.insert(2, pb.SendBatchRequest(topic=topic))
    answers = list(stub.SendBatch(iter(requests), timeout=wait_seconds_max()))
    assert [list(answer.offsets) for answer in answers] == [[0], [-1], [], [1], [2]]
    assert [bool(answer.failures) for answer in answers] == [False, True, True, False, False]
    assert [message.value for message in read(stub, topic, 0)] == [b"0", b"2", b"3"]


def test_messages_of_a_batch_go_where_their_keys_say_and_each_gets_its_offset(
    stub: QueueStub, topic: str
) -> None:
    keys = [b"key-%d" % number for number in range(40)]
    messages = [pb.OutgoingMessage(key=key, value=b"of " + key) for key in keys]
    (answer,) = stub.SendBatch(
        iter([pb.SendBatchRequest(topic=topic, messages=messages)]), timeout=wait_seconds_max()
    )
    assert list(answer.partitions) == [partition_of(key, PARTITIONS) for key in keys]
    stored = {
        (message.partition, message.offset): message.key
        for partition in range(PARTITIONS)
        for message in read(stub, topic, partition)
    }
    places = zip(answer.partitions, answer.offsets, strict=True)
    assert [stored[place] for place in places] == keys
    assert len(stored) == len(keys)


def test_a_request_larger_than_a_batch_of_the_topic_is_cut_into_several(
    stub: QueueStub, topic: str
) -> None:
    messages = [pb.OutgoingMessage(partition=0, value=bytes(5_000)) for _ in range(20)]
    (answer,) = stub.SendBatch(
        iter([pb.SendBatchRequest(topic=topic, messages=messages)]), timeout=wait_seconds_max()
    )
    assert list(answer.offsets) == list(range(20))


def test_messages_without_a_key_are_spread(stub: QueueStub, topic: str) -> None:
    request = pb.SendRequest(topic=topic, message=MESSAGE)
    places = {stub.Send(request, timeout=wait_seconds_max()).partition for _ in range(PARTITIONS)}
    assert places == set(range(PARTITIONS))


def test_an_internal_topic_takes_no_messages(
    stub: QueueStub, moldau_session_broker: Broker
) -> None:
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": moldau_session_broker.bootstrap, "group.id": "grpc-internal"}
    )
    member.committed([confluent_kafka.TopicPartition("t", 0)], timeout=wait_seconds_max())
    member.close()
    request = pb.SendRequest(topic="__consumer_offsets", message=MESSAGE)
    status, _ = refused(lambda: stub.Send(request, timeout=wait_seconds_max()))
    assert status is grpc.StatusCode.INVALID_ARGUMENT


# ---- how much is worked on at once


class SlowAppends:
    """Appends that end when they are let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.free = threading.Event()

    async def append(self, *place: object, **how: object) -> object:
        number = self.begun
        self.begun += 1
        while not self.free.is_set():
            await asyncio.sleep(0.005)
        return AppendResult(ErrorCode.NONE, "", number)

    def broker(self) -> dict[str, Any]:
        """What sending needs of one."""
        topic = SimpleNamespace(name="t", partitions=[None])
        return {
            "appends": self,
            "image": SimpleNamespace(topic=lambda name: topic),
            "clock": SimpleNamespace(wall_ms=lambda: TimestampMs(0)),
            "replicas": SimpleNamespace(
                is_leader=lambda name, index: True, message_bytes_max=lambda name: 10**6
            ),
        }


def test_a_stream_is_read_no_faster_than_it_is_stored() -> None:
    appends = SlowAppends()
    count = 5 * AHEAD_MAX
    with opened(broker=appends.broker()) as door:
        requests = [pb.SendBatchRequest(topic="t", messages=[MESSAGE])] * count
        answers = door.stub.SendBatch(iter(requests), timeout=wait_seconds_max())
        wait_until(lambda: appends.begun >= AHEAD_MAX, "as many are stored as may be")
        # More would come in a moment, if it did at all.
        time.sleep(0.1)
        assert appends.begun == AHEAD_MAX
        appends.free.set()
        assert [answer.offsets[0] for answer in answers] == list(range(count))


def test_what_finds_no_room_is_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_handlers, "BYTES_MAX", 1_000)
    appends = SlowAppends()
    message = pb.OutgoingMessage(value=bytes(600))
    request = pb.SendRequest(topic="t", message=message)
    with opened(broker=appends.broker()) as door:
        first = door.stub.Send.future(request, timeout=wait_seconds_max())
        wait_until(lambda: appends.begun, "the first is being stored")
        busy = (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY")
        assert refused(lambda: door.stub.Send(request, timeout=wait_seconds_max())) == busy
        batch = pb.SendBatchRequest(topic="t", messages=[message])
        (answer,) = door.stub.SendBatch(iter([batch]), timeout=wait_seconds_max())
        assert answer.failures[0].reason == pb.BUSY
        appends.free.set()
        assert first.result().offset == 0
        (answer,) = door.stub.SendBatch(iter([batch]), timeout=wait_seconds_max())
        assert list(answer.offsets) == [1]


def test_more_messages_than_a_request_may_have_are_refused(stub: QueueStub, topic: str) -> None:
    batch = pb.SendBatchRequest(topic=topic, messages=[MESSAGE] * 5_001)
    (answer,) = stub.SendBatch(iter([batch]), timeout=wait_seconds_max())
    assert answer.failures[0].reason == pb.INVALID_ARGUMENT
    assert set(answer.offsets) == {-1}


def test_what_comes_before_a_malformed_request_is_stored_and_answered() -> None:
    appends = SlowAppends()
    request = pb.SendBatchRequest(topic="t", messages=[MESSAGE]).SerializeToString()
    with opened(broker=appends.broker()) as door, grpc.insecure_channel(door.address) as channel:
        send: Any = channel.stream_stream("/moldau.v1.Queue/SendBatch")
        answers = send(iter([request, request, b"\xff"]), timeout=wait_seconds_max())
        wait_until(lambda: appends.begun == 2, "both are being stored")
        appends.free.set()
        offsets = [pb.SendBatchResponse.FromString(next(answers)).offsets[0] for _ in range(2)]
        assert offsets == [0, 1]
        assert refused(lambda: next(answers)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_ARGUMENT",
        )


def test_an_internal_error_ends_a_stream_that_sends_nothing_more_after_its_answers() -> None:
    appends = SlowAppends()
    never = threading.Event()

    async def append(*place: object, **how: object) -> object:
        if appends.begun == 1:
            raise ZeroDivisionError
        return await appends.append(*place, **how)

    def requests() -> Iterator[pb.SendBatchRequest]:
        for _ in range(2):
            yield pb.SendBatchRequest(topic="t", messages=[MESSAGE])
        never.wait(wait_seconds_max())

    broken = {**appends.broker(), "appends": SimpleNamespace(append=append)}
    with opened(broker=broken) as door:
        answers = door.stub.SendBatch(requests(), timeout=wait_seconds_max())
        wait_until(lambda: appends.begun, "the first is being stored")
        appends.free.set()
        assert list(next(answers).offsets) == [0]
        assert refused(lambda: next(answers)) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        never.set()


def test_a_stop_answers_what_is_under_way_and_refuses_the_rest() -> None:
    appends = SlowAppends()
    never = threading.Event()

    def requests() -> Iterator[pb.SendBatchRequest]:
        yield pb.SendBatchRequest(topic="t", messages=[MESSAGE])
        never.wait(wait_seconds_max())

    with opened(broker=appends.broker()) as door:
        answers = door.stub.SendBatch(requests(), timeout=wait_seconds_max())
        wait_until(lambda: appends.begun, "the first is being stored")
        stopping = threading.Thread(target=lambda: door.run(door.listener.stop(wait_seconds_max())))
        stopping.start()
        appends.free.set()
        assert list(next(answers).offsets) == [0]
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        never.set()
        stopping.join(wait_seconds_max())


async def test_the_time_in_which_a_batch_is_stored_is_charged() -> None:
    requests = [pb.SendBatchRequest(topic="t")] * 3
    steps: list[float] = []

    class Calling:
        """As a call of gRPC, of a client that sends these."""

        session = None

        def __init__(self) -> None:
            self.left = iter(requests)
            self.answers: list[pb.SendBatchResponse] = []

        async def read(self) -> pb.SendBatchRequest | None:
            return next(self.left, None)

        async def confirm(self, answer: pb.SendBatchResponse) -> None:
            self.answers.append(answer)

    stopping = asyncio.get_running_loop().create_future()
    calls = SimpleNamespace(stopping=stopping, waiting=contextlib.nullcontext)
    call: Any = Calling()
    before = ON_STEP.set(steps.append)
    try:
        await send_handlers.SendHandlers(cast(Any, calls)).send_batch(call)
    finally:
        ON_STEP.reset(before)
    assert [len(answer.failures) for answer in call.answers] == [1, 1, 1]
    # The handler itself is timed by its caller.
    assert len(steps) == len(requests)
