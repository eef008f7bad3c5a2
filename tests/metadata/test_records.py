import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.records import (
    MetadataRecord,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, TopicId

CREATED = TopicCreated(
    name="a",
    topic_id=TopicId(b"i" * 16),
    partitions=((BrokerId(1), BrokerId(2)),),
    configs={"retention.ms": "1"},
)


def test_a_field_of_a_later_version_is_skipped() -> None:
    fields = {"type": "topic-deleted", "topic_id": b"i" * 16, "since_version_9": [1, {"x": 2}]}
    data = b"\x01" + msgspec.msgpack.encode(fields)
    assert decode_record(data) == TopicDeleted(topic_id=TopicId(b"i" * 16))


def test_a_later_format_is_refused_with_the_reason() -> None:
    with pytest.raises(CorruptionError, match="newer"):
        decode_record(b"\x02" + encode_record(CREATED)[1:])


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_corruption_or_a_record(data: bytes) -> None:
    try:
        record = decode_record(data)
    except CorruptionError:
        return
    assert isinstance(record, MetadataRecord)


def test_a_record_cut_anywhere_is_corruption() -> None:
    data = encode_record(CREATED)
    assert decode_record(data) == CREATED
    assert decode_record(memoryview(data)) == CREATED
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_record(data[:length])
