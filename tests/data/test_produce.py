"""What a topic's own compression does to batches on their way in."""

import pytest

from moldau.client.errors import RejectedError
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import build_raw_batch, read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


def batch(size: int, codec: Codec) -> bytes:
    return build_batch([Record(Offset(0), TimestampMs(1_000), None, bytes(size), [])], codec=codec)


def test_a_batch_that_grows_beyond_the_limit_in_the_topics_own_compression_is_refused(
    moldau_session_broker: Broker,
) -> None:
    with KafkaClient(moldau_session_broker.bootstrap, timeout=wait_seconds_max()) as client:
        configs = {"compression.type": "uncompressed", "max.message.bytes": "10000"}
        client.create_topic("grows", configs=configs)
        assert client.produce("grows", 0, batch(9_000, Codec.ZSTD)) == 0
        with pytest.raises(RejectedError) as refused:
            client.produce("grows", 0, batch(50_000, Codec.ZSTD))
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert client.produce("grows", 0, batch(10, Codec.NONE)) == 1
        stored = client.fetch("grows", 0, 0)
    header = read_header(stored)
    assert header.codec == Codec.NONE
    assert [record.value for record in read_records(stored[: header.size])] == [bytes(9_000)]


def test_more_records_than_a_compacted_topic_looks_at_are_refused_unopened(
    moldau_session_broker: Broker,
) -> None:
    record = Record(Offset(0), TimestampMs(1_000), b"key", b"", [])
    header = read_header(build_batch([record], codec=Codec.ZSTD))
    with KafkaClient(moldau_session_broker.bootstrap, timeout=wait_seconds_max()) as client:
        client.create_topic("numerous", configs={"cleanup.policy": "compact"})
        for count, code in (
            (100_000, ErrorCode.CORRUPT_MESSAGE),
            (100_001, ErrorCode.MESSAGE_TOO_LARGE),
        ):
            claimed = header.replaced(record_count=count, last_offset_delta=count - 1)
            with pytest.raises(RejectedError) as refused:
                client.produce("numerous", 0, build_raw_batch(claimed, b"no zstd"))
            assert refused.value.code == code


def test_a_bomb_for_a_compacted_topic_is_refused_before_it_is_whole(
    moldau_session_broker: Broker,
) -> None:
    record = Record(Offset(0), TimestampMs(1_000), b"key", bytes(100 << 20), [])
    bomb = build_batch([record], codec=Codec.ZSTD)
    assert len(bomb) < 10_000
    with KafkaClient(moldau_session_broker.bootstrap, timeout=wait_seconds_max()) as client:
        client.create_topic("bombed", configs={"cleanup.policy": "compact"})
        with pytest.raises(RejectedError) as refused:
            client.produce("bombed", 0, bomb)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
        kept = build_batch([record._replace(value=bytes(1 << 20))], codec=Codec.ZSTD)
        assert client.produce("bombed", 0, kept) == 0
