"""Owns a raw client for tests: one call per question, on single partitions, whole batches.

Built on the package's own socket client, which sends what it is told and repairs nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import Headers, Record, build_batch, read_records
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)

PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12
"""The last versions that call a topic by its name."""
TIMESTAMP_MS = 1_700_000_000_000
BYTES_MAX = 1 << 24


def record(
    value: bytes | None,
    key: bytes | None = b"key",
    *,
    timestamp: int = TIMESTAMP_MS,
    headers: Headers | None = None,
) -> Record:
    return Record(Offset(0), TimestampMs(timestamp), key, value, headers or [])


def batch(
    values: Iterable[bytes],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    return build_batch(
        [record(value) for value in values],
        codec=codec,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
        base_sequence=sequence,
    )


def batches(data: Any) -> list[bytes]:
    """The whole batches in what a fetch returned."""
    view = bytes(data)
    found = []
    position = 0
    while position < len(view):
        size = read_header(view, position).size
        found.append(view[position : position + size])
        position += size
    return found


def records(data: Any) -> list[Record]:
    return [item for part in batches(data) for item in read_records(part)]


def produce_request(
    topic: str, data: bytes, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        topics=[
            ProduceTopic(name=topic, partitions=[ProducePartition(index=partition, records=data)])
        ],
    )


class RawClient(KafkaConnection):
    """A connection with a shorthand for each request that tests make often."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "moldau",
        timeout: float | None = None,
        security: Security = PLAIN_TEXT,
    ) -> None:
        super().__init__(
            host,
            port,
            client_id=client_id,
            timeout=timeout or wait_seconds_max(),
            security=security,
        )

    def produce(
        self,
        topic: str,
        data: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = PRODUCE_BY_NAME,
    ) -> ProduceResponsePartition:
        request = produce_request(topic, data, partition=partition, acks=acks)
        return self.request(request, ProduceResponse, version).topics[0].partitions[0]

    def produce_well(self, topic: str, *values: bytes, codec: Codec = Codec.NONE) -> int:
        """Append one batch; the offset of its first record."""
        answer = self.produce(topic, batch(values, codec=codec))
        assert answer.error_code == ErrorCode.NONE, answer
        return answer.base_offset

    def fetch_response(
        self,
        topic: str,
        offset: int,
        *,
        partitions: Sequence[int] = (0,),
        wait_ms: int = 0,
        bytes_min: int = 1,
        bytes_max: int = BYTES_MAX,
        partition_bytes_max: int = BYTES_MAX,
        leader_epoch: int = -1,
        version: int = FETCH_BY_NAME,
        **fields: Any,
    ) -> FetchResponse:
        wanted = [
            FetchPartition(
                partition=partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=partition_bytes_max,
            )
            for partition in partitions
        ]
        named = (
            {"topic": topic} if version <= FETCH_BY_NAME else {"topic_id": fields.pop("topic_id")}
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=bytes_min,
            max_bytes=bytes_max,
            topics=[FetchTopic(**named, partitions=wanted)],
            **fields,
        )
        return self.request(request, FetchResponse, version)

    def fetch(self, topic: str, offset: int, **options: Any) -> FetchResponsePartition:
        return self.fetch_response(topic, offset, **options).topics[0].partitions[0]

    def read_all(self, topic: str, partition: int = 0) -> list[Record]:
        """Everything from the first offset to the high watermark."""
        found: list[Record] = []
        offset = self.list_offset(topic, -2, partition=partition).offset
        while True:
            answer = self.fetch(topic, offset, partitions=[partition])
            assert answer.error_code == ErrorCode.NONE, answer
            found += [item for item in records(answer.records) if item.offset >= offset]
            if not found or found[-1].offset + 1 >= answer.high_watermark:
                return found
            offset = found[-1].offset + 1

    def list_offset(
        self,
        topic: str,
        timestamp: int,
        *,
        partition: int = 0,
        isolation: int = 0,
        version: int | None = None,
    ) -> ListOffsetsResponsePartition:
        request = ListOffsetsRequest(
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                    ],
                )
            ],
        )
        return self.request(request, ListOffsetsResponse, version).topics[0].partitions[0]

    def create(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> CreatableTopicResult:
        asked = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=name, value=value)
                for name, value in (configs or {}).items()
            ],
        )
        return self.request(CreateTopicsRequest(topics=[asked]), CreateTopicsResponse).topics[0]

    def create_well(self, topic: str, *, partitions: int = 1, **configs: str) -> str:
        """A new topic; the names of its configs are written with _ for dots."""
        renamed = {name.replace("_", "."): value for name, value in configs.items()}
        answer = self.create(topic, partitions=partitions, configs=renamed)
        assert answer.error_code == ErrorCode.NONE, answer
        return topic

    def delete(self, topic: str) -> int:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=topic, topic_id=bytes(16))],
            topic_names=[topic],
            timeout_ms=60_000,
        )
        return self.request(request, DeleteTopicsResponse).responses[0].error_code

    def metadata(
        self, topic: str, *, creates: bool = False, version: int | None = None
    ) -> MetadataResponseTopic:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=creates
        )
        return self.request(request, MetadataResponse, version).topics[0]

    def new_producer(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self.request(request, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer.producer_id, answer.producer_epoch
