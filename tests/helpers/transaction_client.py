"""Owns a transactional producer on our own connections: any request, at any version."""

from typing import NamedTuple, TypeVar

from chunks import in_memory

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.waiting import wait_until
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

READ_COMMITTED = 1
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
RISING = 5

Answer = TypeVar("Answer", InitProducerIdResponse, EndTxnResponse)


class Producer(NamedTuple):
    name: str
    id: int
    epoch: int


class Client:
    """A producer of one connection; says each request at the version that a test wants."""

    def __init__(self, connection: KafkaConnection, topic: str, partition: int = 0) -> None:
        self.connection = connection
        self.topic = topic
        self.partition = partition

    def init(self, name: str, version: int = 5, timeout_ms: int = 60_000) -> Producer:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        coordinator = FindCoordinatorRequest(key=name, key_type=1)

        def ask() -> InitProducerIdResponse | None:
            answer = self.connection.request(request, InitProducerIdResponse, version)
            if answer.error_code in LOADING:
                # The first one makes the topic of transactions.
                self.connection.request(coordinator, FindCoordinatorResponse, 3)
                return None
            return _decided(answer)

        found = wait_until(ask, "the coordinator is ready, and the transaction before over")
        assert found is not None
        assert found.error_code == 0
        return Producer(name, found.producer_id, found.producer_epoch)

    def add(self, producer: Producer, version: int = 3, topic: str | None = None) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic or self.topic, partitions=[self.partition])
            ],
        )
        answer = self.connection.request(request, AddPartitionsToTxnResponse, version)
        (result,) = answer.results_by_topic_v3_and_below
        return result.results_by_partition[0].partition_error_code

    def produce(self, producer: Producer, value: bytes, sequence: int = 0, version: int = 9) -> int:
        batch = build_batch(
            [Record(Offset(0), TimestampMs(1), None, value, [])],
            producer_id=ProducerId(producer.id),
            producer_epoch=ProducerEpoch(producer.epoch),
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=producer.name,
            acks=-1,
            timeout_ms=60_000,
            topics=[
                ProduceTopic(
                    name=self.topic,
                    partitions=[ProducePartition(index=self.partition, records=batch)],
                )
            ],
        )
        response = self.connection.request(request, ProduceResponse, version)
        return response.topics[0].partitions[0].error_code

    def end(self, producer: Producer, *, commit: bool = True, version: int = 4) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        answer = wait_until(
            lambda: _decided(self.connection.request(request, EndTxnResponse, version)),
            "the transaction before is over",
        )
        assert answer is not None
        return answer

    def committed(self) -> list[bytes]:
        """What one who reads committed sees: without the aborted, as clients do it."""
        data, offset = b"", 0
        aborted: set[tuple[int, int]] = set()
        while True:
            wanted = FetchPartition(
                partition=self.partition, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            request = FetchRequest(
                max_wait_ms=10,
                min_bytes=1,
                isolation_level=READ_COMMITTED,
                topics=[FetchTopic(topic=self.topic, partitions=[wanted])],
            )
            answer = self.connection.request(request, FetchResponse, 12).topics[0].partitions[0]
            assert answer.error_code == 0
            if not answer.records:
                return _visible(data, sorted(aborted))
            records = in_memory(answer.records)
            data += records
            for each in answer.aborted_transactions or ():
                aborted.add((each.first_offset, each.producer_id))
            position = 0
            while position < len(records):
                header = read_header(records, position)
                offset, position = header.next_offset, position + header.size


def _decided(answer: Answer) -> Answer | None:
    return None if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS else answer


def _visible(data: bytes, aborted: list[tuple[int, int]]) -> list[bytes]:
    values: list[bytes] = []
    dropping: set[int] = set()
    position = 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.size]
        position += header.size
        while aborted and aborted[0][0] <= header.base_offset:
            dropping.add(aborted.pop(0)[1])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in dropping:
            values += [record.value or b"" for record in read_records(batch)]
    return values
