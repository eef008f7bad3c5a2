"""The small client against a real broker."""

from collections.abc import Iterator

import pytest

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.wire.client import OFFSET_EARLIEST, OFFSET_LATEST, KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client() -> Iterator[KafkaClient]:
    with Broker() as broker, KafkaClient(broker.bootstrap) as client:
        yield client


def batch(*values: bytes) -> bytes:
    records = [
        Record(offset=Offset(i), timestamp=TimestampMs(1000 + i), key=b"k", value=value, headers=[])
        for i, value in enumerate(values)
    ]
    return build_batch(records)


def test_what_is_produced_is_fetched(client: KafkaClient) -> None:
    client.create_topic("raw", 2)
    assert client.produce("raw", 1, batch(b"a", b"b")) == 0
    assert client.produce("raw", 1, batch(b"c")) == 2
    assert client.list_offset("raw", 1, OFFSET_EARLIEST) == 0
    assert client.list_offset("raw", 1, OFFSET_LATEST) == 3
    assert client.list_offset("raw", 0, OFFSET_LATEST) == 0
    data = client.fetch("raw", 1, 0)
    size = 12 + int.from_bytes(data[8:12], "big")
    assert [r.value for r in read_records(data[:size])] == [b"a", b"b"]
    assert [r.value for r in read_records(data[size:])] == [b"c"]
    assert client.fetch("raw", 1, 3, wait_ms_max=0) == b""


def test_an_offset_beyond_the_end_is_rejected(client: KafkaClient) -> None:
    client.create_topic("short")
    with pytest.raises(RejectedError) as caught:
        client.fetch("short", 0, 7)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_damaged_batch_is_rejected_and_stores_nothing(client: KafkaClient) -> None:
    client.create_topic("damaged")
    broken = bytearray(batch(b"value"))
    broken[-1] ^= 0xFF
    with pytest.raises(RejectedError) as caught:
        client.produce("damaged", 0, broken)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert client.list_offset("damaged", 0) == 0


def test_a_topic_can_be_created_once(client: KafkaClient) -> None:
    client.create_topic("once")
    with pytest.raises(RejectedError) as caught:
        client.create_topic("once")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_topic_that_is_not_there_is_not_found_and_not_made(client: KafkaClient) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError):
            client.list_offset("nowhere", 0)
