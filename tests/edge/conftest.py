"""A connection to the session's broker, and topics with some records in them."""

from collections.abc import Callable, Iterator

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.edge.kafka import produce_request
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)


@pytest.fixture(autouse=True)
def forget_produce_requests() -> Iterator[None]:
    """Those that are known are so in the whole process."""
    yield
    produce_request._learned.clear()
    for by_head in produce_request._by_version:
        by_head.clear()
    produce_request._left_out = 0


@pytest.fixture
def connection(moldau_session_broker: Broker) -> Iterator[KafkaConnection]:
    broker = moldau_session_broker
    with KafkaConnection(broker.host, broker.port, client_id="edge-test") as opened:
        yield opened


@pytest.fixture
def produce(connection: KafkaConnection) -> Callable[[str, int], None]:
    """Appends that many records to partition 0 of a topic, each in a batch of its own."""

    def append(topic: str, count: int) -> None:
        for number in range(count):
            record = Record(Offset(0), TimestampMs(1_000 + number), b"key", b"value", [])
            partition = ProducePartition(index=0, records=build_batch([record]))
            response = connection.request(
                ProduceRequest(
                    acks=-1,
                    timeout_ms=10_000,
                    topics=[ProduceTopic(name=topic, partitions=[partition])],
                ),
                ProduceResponse,
                version=9,
            )
            assert response.topics[0].partitions[0].error_code == 0

    return append


@pytest.fixture
def topic_id_of(connection: KafkaConnection) -> Callable[[str], bytes]:
    def find(name: str) -> bytes:
        response = connection.request(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
            ),
            MetadataResponse,
        )
        return response.topics[0].topic_id

    return find
