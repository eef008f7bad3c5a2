import struct

import pytest
from chunks import in_memory, joined

from benchmarks.clients import frames
from benchmarks.clients.kafka_raw import ReplyCounter
from benchmarks.clients.pump import LoadError
from moldau.records.record import read_records
from moldau.wire.framing import frame_response, read_request_header
from moldau.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)


def reply(topic: str, *, error: int = 0, offset: int = 0, text: str | None = None) -> bytes:
    partition = ProduceResponsePartition(
        index=3, base_offset=offset, error_code=error, error_message=text
    )
    response = ProduceResponse(topics=[ProduceResponseTopic(name=topic, partitions=[partition])])
    body = response.encode(frames.PRODUCE_VERSION)
    return joined(frame_response(0, frames.PRODUCE_VERSION, 9, body))


def test_a_produce_frame_holds_its_length_topic_partition_and_batch() -> None:
    batch = frames.record_batch([b"one", b"two"])
    frame = frames.produce("t", 5, batch, acks=-1)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    view = memoryview(frame)[4:]
    header = read_request_header(view)
    request = ProduceRequest.decode(view, header.api_version, header.body_position)
    assert request.acks == -1
    assert request.topics[0].partitions[0].index == 5
    records = read_records(in_memory(request.topics[0].partitions[0].records))
    assert [record.value for record in records] == [b"one", b"two"]


@pytest.mark.parametrize("step", [1, 7, 48, 1000])
def test_replies_are_counted_wherever_the_stream_is_cut(step: int) -> None:
    stream = b"".join(reply("bench-x", offset=number) for number in range(20))
    counter = ReplyCounter("bench-x", messages_per_reply=3)
    counted = sum(
        counter.feed(memoryview(stream[at : at + step])) for at in range(0, len(stream), step)
    )
    assert counted == 60


@pytest.mark.parametrize("text", [None, "the disk is full"])
def test_a_refused_request_ends_the_load_with_its_error_code(text: str | None) -> None:
    stream = reply("bench-x") + reply("bench-x", error=56, text=text) + reply("bench-x")
    with pytest.raises(LoadError, match="error_code=56"):
        ReplyCounter("bench-x").feed(memoryview(stream))


def test_fetching_goes_on_after_the_last_whole_batch() -> None:
    first, second = frames.record_batch([b"a"] * 3), bytearray(frames.record_batch([b"b"] * 2))
    second[:8] = struct.pack(">q", 3)
    both = memoryview(first + bytes(second))
    assert frames.offset_after(both, 0) == (5, 5)
    assert frames.offset_after(both[:-1], 0) == (3, 3)
    assert frames.offset_after(both[:10], 7) == (7, 0)
