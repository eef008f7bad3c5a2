"""Round trips, damaged input and hostile input, for every API and version."""

import contextlib
import itertools
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chunks import in_memory, joined
from effort import EFFORT, seeds
from sliced import opened

from moldau.model.errors import ErrorCode, PeerProtocolError, RefusedError
from moldau.model.slices import Chunk, FileSlice
from moldau.wire.encoder import RECORDS_COPIED_BYTES_MAX
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from moldau.wire.messages.fetch import (
    FetchLeader,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from moldau.wire.messages.heartbeat import HeartbeatRequest
from moldau.wire.messages.join_group import JoinGroupRequest
from moldau.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.wire.messages.offset_fetch import OffsetFetchRequest
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from moldau.wire.registry import APIS, REQUESTS, RESPONSES
from moldau.wire.schema import Message, Request
from moldau.wire.varint import write_uvarint

CASES = [
    pytest.param(messages, key, id=f"{api.title}{suffix}")
    for key, api in APIS.items()
    for suffix, messages in (("Request", REQUESTS), ("Response", RESPONSES))
]


def versions(key: int) -> range:
    return range(APIS[key].versions.first, APIS[key].versions.last + 1)


def body(message: Message, version: int) -> bytes:
    return joined(message.encode(version))


def produce(records: Any, *, name: str = "t") -> ProduceRequest:
    partition = ProducePartition(index=3, records=records)
    topic = ProduceTopic(name=name, partitions=[partition])
    return ProduceRequest(acks=-1, timeout_ms=500, topics=[topic])


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_what_is_encoded_decodes_to_the_same(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    cls = messages[key]
    for version, seed in itertools.product(versions(key), seeds(2)):
        message = make_message(cls, version, f"round{seed}")
        assert cls.decode(memoryview(body(message, version)), version) == message


def in_steps(message: Message, version: int) -> tuple[int, list[Chunk]]:
    """How often it yields, and what it encodes."""
    steps, count = message.encode_in_steps(version), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return count, end.value


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_what_is_encoded_in_steps_is_the_same(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    for version in versions(key):
        message = make_message(messages[key], version, "steps")
        _, chunks = in_steps(message, version)
        assert joined(chunks) == body(message, version)


def test_each_nested_element_is_a_step_and_no_join_is_long() -> None:
    topics = [
        MetadataResponseTopic(
            name="t",
            partitions=[
                MetadataResponsePartition(
                    partition_index=index, leader_id=1, replica_nodes=[1, 2], isr_nodes=[]
                )
                for index in range(1000)
            ],
        )
        for _ in range(10)
    ]
    message = MetadataResponse(brokers=[], topics=topics)
    count, chunks = in_steps(message, 12)
    assert count > 10_000
    assert len(chunks) > 1
    assert joined(chunks) == body(message, 12)


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_a_message_cut_anywhere_is_refused(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    cls = messages[key]
    for version in versions(key):
        data = body(make_message(cls, version, "cut"), version)
        # Every position of the beginning, then samples: long strings are all alike.
        whole = 60 * EFFORT
        for position in [*range(min(len(data), whole)), *range(whole, len(data), 17)]:
            with pytest.raises(PeerProtocolError):
                cls.decode(memoryview(data)[:position], version)


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_damaged_bytes_raise_nothing_but_a_protocol_error(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    cls = messages[key]
    for version in versions(key):
        data = body(make_message(cls, version, "damage"), version)
        for position, turn in itertools.product(range(min(len(data), 120)), range(min(EFFORT, 4))):
            broken = bytearray(data)
            broken[position] = (0x00, 0x7F, 0x80, 0xFF)[(position + version + turn) % 4]
            with contextlib.suppress(PeerProtocolError):
                cls.decode(memoryview(broken), version)


def test_bytes_behind_the_end_are_let_pass_as_librdkafka_sends_them() -> None:
    # What librdkafka 2.16 sends to list all topics: its null array is three bytes too long.
    sent = bytes.fromhex("00000000010000")
    request = MetadataRequest.decode(memoryview(sent), 13)
    assert request.topics is None
    assert request.allow_auto_topic_creation is False


def test_decode_begins_at_the_given_position() -> None:
    message = produce(b"abc")
    assert ProduceRequest.decode(memoryview(b"head" + body(message, 9)), 9, 4) == message


def test_decoded_records_are_a_view_of_the_input() -> None:
    data = bytearray(body(produce(b"x" * 100), 9))
    records = ProduceRequest.decode(memoryview(data), 9).topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    data[data.index(b"x")] = ord("y")
    assert bytes(records[:2]) == b"yx"


def test_large_records_are_a_chunk_of_their_own_and_not_copied() -> None:
    records = memoryview(bytes(RECORDS_COPIED_BYTES_MAX + 1))
    chunks = produce(records).encode(9)
    assert len(chunks) == 3
    assert chunks[1] is records


def test_small_records_are_copied_into_one_chunk() -> None:
    assert len(produce(b"x" * 100).encode(9)) == 1


def test_a_file_slice_is_counted_and_never_read() -> None:
    with opened(Path(__file__)) as file:
        small = FileSlice(file, 0, 40)
        chunks = produce(small).encode(9)
        assert chunks[1] is small
        head, tail = chunks[0], chunks[2]
        as_bytes = produce(b"z" * 40).encode(9)
        assert in_memory(head) + b"z" * 40 + in_memory(tail) == as_bytes[0]


@pytest.mark.parametrize("version", [4, 12])
def test_fetched_file_slices_alternate_with_what_is_between_them(version: int) -> None:
    with opened(Path(__file__)) as file:
        parts = [
            FetchResponsePartition(
                partition_index=i, high_watermark=9, records=FileSlice(file, i * 100, 100)
            )
            for i in range(3)
        ]
        response = FetchResponse(topics=[FetchResponseTopic(topic="t", partitions=parts)])
        chunks = response.encode(version)
    assert [type(chunk) is FileSlice for chunk in chunks] == [False, True] * 3 + (
        [False] if version == 12 else []
    )
    data = b"".join(b"r" * 100 if isinstance(c, FileSlice) else c for c in chunks)
    decoded = FetchResponse.decode(memoryview(data), version)
    assert [p.records for p in decoded.topics[0].partitions] == [b"r" * 100] * 3


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    message = produce(b"abc")
    plain = body(message, 9)
    unknown = b"\x02\x05\x03abc\xac\x02\x00"  # two fields, tags 5 and 300, of 3 and 0 bytes
    # The three sections of tagged fields are the last three bytes: partition, topic, request.
    assert plain.endswith(b"abc\0\0\0")
    data = plain[:-3] + unknown * 3
    assert ProduceRequest.decode(memoryview(data), 9) == message


def test_a_known_tagged_field_must_be_as_long_as_it_says() -> None:
    leader = FetchLeader(leader_id=1, leader_epoch=2)
    part = FetchResponsePartition(
        partition_index=0, high_watermark=0, records=None, current_leader=leader
    )
    response = FetchResponse(topics=[FetchResponseTopic(topic="t", partitions=[part])])
    data = body(response, 12)
    encoded = b"\x01\x09" + struct.pack(">iib", 1, 2, 0)
    assert data.count(encoded) == 1
    assert FetchResponse.decode(memoryview(data), 12) == response
    for size in (b"\x08", b"\x0a"):
        broken = data.replace(encoded, b"\x01" + size + encoded[2:])
        with pytest.raises(PeerProtocolError):
            FetchResponse.decode(memoryview(broken), 12)


HOSTILE = [
    pytest.param(MetadataRequest, 1, b"\x7f\xff\xff\xff", id="array of 2 billion"),
    pytest.param(MetadataRequest, 1, b"\x80\x00\x00\x00", id="negative array"),
    pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f\0\0\0\0", id="compact array of 4 G"),
    pytest.param(MetadataRequest, 9, b"\xff" * 9 + b"\x01", id="varint of ten bytes"),
    pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\x7f", id="varint of 35 bits"),
    pytest.param(HeartbeatRequest, 0, b"\x7f\xff", id="long string"),
    pytest.param(HeartbeatRequest, 0, b"\xff\xfe", id="string of negative length"),
    pytest.param(HeartbeatRequest, 0, b"\xff\xff", id="null where none is allowed"),
    pytest.param(HeartbeatRequest, 4, b"\x00", id="compact null where none is allowed"),
    pytest.param(HeartbeatRequest, 0, b"\x00\x02\xc3\x28", id="not UTF-8"),
    pytest.param(
        ProduceRequest,
        3,
        b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff",
        id="records of 2 GiB",
    ),
    pytest.param(
        ProduceRequest,
        3,
        b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe",
        id="records of negative length",
    ),
    pytest.param(
        JoinGroupRequest,
        0,
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\x7f\xff\xff\xff",
        id="bytes of 2 GiB",
    ),
    pytest.param(FetchRequest, 4, b"\0" * 17 + b"\0\0\0\1\0\1t\x20\0\0\0", id="partitions"),
    pytest.param(MetadataRequest, 9, b"\x01\0\0\0\xff\xff\xff\xff\x0f", id="tagged fields of 4 G"),
    pytest.param(MetadataRequest, 9, b"\x01\0\0\0\x01\x09\xff\xff\xff\xff\x0f", id="tag size"),
]


@pytest.mark.parametrize(("cls", "version", "data"), HOSTILE)
def test_a_hostile_length_is_refused_before_anything_is_allocated(
    cls: type[Message], version: int, data: bytes
) -> None:
    with pytest.raises(PeerProtocolError):
        cls.decode(memoryview(data), version)
    tracemalloc.start()
    try:
        with pytest.raises(PeerProtocolError):
            cls.decode(memoryview(data), version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_count_is_compared_with_what_is_left_before_the_first_element() -> None:
    data = struct.pack(">i", 1_000_000) + bytes(2 * 100_000)  # a tenth of the empty names it says
    MetadataRequest.decode(memoryview(struct.pack(">i", 1) + bytes(2)), 1)
    tracemalloc.start()
    try:
        with pytest.raises(PeerProtocolError, match="exceeds the end"):
            MetadataRequest.decode(memoryview(data), 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_more_elements_than_a_message_may_have_are_refused_early() -> None:
    # Two bytes for each element, so that the frame itself is of a size that is served.
    count = Request.ELEMENTS_MAX + 1
    data = write_uvarint(count + 1) + bytes(2 * count + 1000)
    with pytest.raises(PeerProtocolError):
        # The first message of a kind makes its decoder, which is not what is measured.
        DescribeTopicPartitionsRequest.decode(memoryview(b""), 0)
    tracemalloc.start()
    try:
        with pytest.raises(PeerProtocolError, match="elements"):
            DescribeTopicPartitionsRequest.decode(memoryview(data), 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_the_bound_of_elements_holds_for_nested_arrays_together() -> None:
    partitions = struct.pack(">i", 1000) + bytes(4 * 1000)
    topic = b"\0\1t" + partitions
    count = Request.ELEMENTS_MAX // 1000 + 1
    # OffsetFetch 1: group id, then topics with partition indexes.
    data = b"\0\1g" + struct.pack(">i", count) + topic * count
    with pytest.raises(PeerProtocolError, match="elements"):
        OffsetFetchRequest.decode(memoryview(data), 1)


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_random_bytes_raise_nothing_but_a_protocol_error(messages: Any, key: int) -> None:
    rng = random.Random(key)
    cls = messages[key]
    for version in [version for version in versions(key) for _ in range(40)]:
        data = rng.randbytes(rng.choice((0, 1, 8, 40, 200)))
        with contextlib.suppress(PeerProtocolError):
            cls.decode(memoryview(data), version)


def test_a_value_that_the_version_lacks_is_refused_unless_it_may_be_dropped() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with pytest.raises(RefusedError, match="allow_auto_topic_creation") as caught:
        request.encode(3)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    # topic_id may be dropped: the name says as much at older versions.
    topic = MetadataRequestTopic(name="t", topic_id=b"i" * 16)
    assert body(MetadataRequest(topics=[topic]), 1) == b"\0\0\0\1\0\1t"


def test_a_null_where_the_version_has_none_is_no_message() -> None:
    with pytest.raises(ValueError, match="MetadataRequest v0"):
        MetadataRequest(topics=None).encode(0)


@pytest.mark.parametrize(
    "message",
    [
        produce(b"", name="x" * 40_000),
        ProduceRequest(acks=1 << 20, timeout_ms=1, topics=[]),
        ProduceRequest(acks=1, timeout_ms=1, topics=[None]),  # type: ignore[list-item]
    ],
)
def test_a_value_that_does_not_fit_its_field_is_an_error_of_the_caller(
    message: ProduceRequest,
) -> None:
    with pytest.raises(ValueError, match="ProduceRequest v3"):
        message.encode(3)


def test_a_uuid_of_another_size_is_not_cut_in_silence() -> None:
    topic = MetadataRequestTopic(name=None, topic_id=b"short")
    with pytest.raises(ValueError, match="16 bytes"):
        MetadataRequest(topics=[topic]).encode(12)


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_a_version_outside_the_table_is_refused(version: int) -> None:
    with pytest.raises(RefusedError, match="only 3 to 13"):
        ProduceRequest.decode(memoryview(b""), version)
    with pytest.raises(RefusedError, match="only 3 to 13"):
        produce(b"").encode(version)


def test_a_nullable_struct_is_marked_with_one_byte() -> None:
    without = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic(name="t")])
    assert body(without, 0)[-2:] == b"\xff\0"
    cursor = DescribeTopicPartitionsCursor(topic_name="t", partition_index=5)
    with_cursor = DescribeTopicPartitionsRequest(topics=[], cursor=cursor)
    assert body(with_cursor, 0)[-9:] == b"\x01\x02t\0\0\0\x05\0\0"
