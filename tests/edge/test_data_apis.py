"""Records go in and come out at every served version of Produce, Fetch and ListOffsets."""

from collections.abc import Callable

import pytest
from chunks import in_memory

from moldau.client.errors import ClientError
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch, read_records
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)

pytestmark = pytest.mark.system

Produce = Callable[[str, int], None]
TopicIdOf = Callable[[str], bytes]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def batch(value: bytes) -> bytes:
    return build_batch([Record(Offset(0), TimestampMs(5_000), b"key", value, [])])


def append(
    connection: KafkaConnection,
    topic: str,
    records: dict[int, bytes],
    version: int,
    *,
    topic_id: bytes = bytes(16),
    acks: int = -1,
    transactional_id: str | None = None,
) -> list[ProduceResponsePartition]:
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topics=[
            ProduceTopic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    ProducePartition(index=index, records=data) for index, data in records.items()
                ],
            )
        ],
    )
    return connection.request(request, ProduceResponse, version).topics[0].partitions


def fetch(
    connection: KafkaConnection,
    topic: str,
    offset: int,
    version: int,
    *,
    topic_id: bytes = bytes(16),
    partition: int = 0,
    epoch: int = -1,
) -> FetchResponsePartition:
    wanted = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=epoch,
    )
    request = FetchRequest(
        max_wait_ms=10,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
    )
    response = connection.request(request, FetchResponse, version)
    assert (response.error_code, response.session_id) == (0, 0)
    return response.topics[0].partitions[0]


# ---- Produce


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_gets_the_next_offset(
    connection: KafkaConnection,
    moldau_topic: str,
    topic_id_of: TopicIdOf,
    version: int,
    acks: int,
) -> None:
    topic_id = topic_id_of(moldau_topic)
    for offset in range(2):
        (answer,) = append(
            connection, moldau_topic, {0: batch(b"x")}, version, topic_id=topic_id, acks=acks
        )
        assert (answer.index, answer.error_code, answer.base_offset) == (0, 0, offset)
        assert answer.log_append_time_ms == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)


@pytest.mark.parametrize("version", range(3, 14))
def test_each_partition_of_a_produce_has_its_own_error(
    connection: KafkaConnection, moldau_topic: str, topic_id_of: TopicIdOf, version: int
) -> None:
    damaged = bytearray(batch(b"x"))
    damaged[-1] ^= 1
    good, missing = append(
        connection,
        moldau_topic,
        {0: batch(b"x"), 7: batch(b"x")},
        version,
        topic_id=topic_id_of(moldau_topic),
    )
    assert (good.error_code, good.base_offset) == (0, 0)
    assert (missing.error_code, missing.base_offset) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        -1,
    )
    (corrupt,) = append(
        connection,
        moldau_topic,
        {0: bytes(damaged)},
        version,
        topic_id=topic_id_of(moldau_topic),
    )
    assert corrupt.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("transactional_id", [None, "tx"])
@pytest.mark.parametrize("version", range(3, 14))
def test_a_second_batch_for_a_partition_is_refused_with_the_first(
    connection: KafkaConnection,
    moldau_topic: str,
    topic_id_of: TopicIdOf,
    version: int,
    transactional_id: str | None,
) -> None:
    """As in Kafka. A request has room for a million of them, which nobody should wait for."""

    def answer(data: bytes) -> ProduceResponsePartition:
        (found,) = append(
            connection,
            moldau_topic,
            {0: data},
            version,
            topic_id=topic_id_of(moldau_topic),
            transactional_id=transactional_id,
        )
        return found

    refused = answer(batch(b"x") + batch(b"y"))
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert answer(batch(b"x")).base_offset == 0


@pytest.mark.safety
@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_a_long_request_is_not_overtaken_by_the_next(
    connection: KafkaConnection, moldau_topic: str, transactional_id: str | None
) -> None:
    """It is appended in turns, between which other clients are served."""
    partitions = [ProducePartition(index=0, records=batch(b"x"))] * 3000
    for asked in (partitions, partitions[:1], partitions[:1]):
        connection.post(
            ProduceRequest(
                transactional_id=transactional_id,
                acks=1,
                timeout_ms=30_000,
                topics=[ProduceTopic(name=moldau_topic, partitions=asked)],
            ),
            9,
        )
    offsets = []
    for _ in range(3):
        response = connection.receive()
        assert isinstance(response, ProduceResponse)
        offsets += [each.base_offset for each in response.topics[0].partitions]
    assert offsets == list(range(3002))


@pytest.mark.parametrize("version", range(3, 14))
def test_a_plain_batch_may_come_from_a_transactional_producer(
    connection: KafkaConnection, moldau_topic: str, topic_id_of: TopicIdOf, version: int
) -> None:
    (answer,) = append(
        connection,
        moldau_topic,
        {0: batch(b"x")},
        version,
        topic_id=topic_id_of(moldau_topic),
        transactional_id="tx",
    )
    assert (answer.error_code, answer.base_offset) == (0, 0)


def test_an_unknown_topic_id_is_refused(connection: KafkaConnection) -> None:
    (answer,) = append(connection, "", {0: batch(b"x")}, 13, topic_id=b"?" * 16)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_acks_that_do_not_exist_are_refused(connection: KafkaConnection, moldau_topic: str) -> None:
    (answer,) = append(connection, moldau_topic, {0: batch(b"x")}, 9, acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("version", range(3))
def test_versions_that_are_only_advertised_close_the_connection(
    connection: KafkaConnection, version: int
) -> None:
    key_and_version = (0).to_bytes(2, "big") + version.to_bytes(2, "big")
    frame = key_and_version + (1).to_bytes(4, "big") + (-1).to_bytes(2, "big", signed=True)
    connection.post_raw([len(frame).to_bytes(4, "big") + frame])
    with pytest.raises(ClientError):
        connection.receive_raw()


# ---- Fetch


@pytest.mark.parametrize("version", range(4, 19))
def test_records_come_out_as_they_went_in(
    connection: KafkaConnection,
    moldau_topic: str,
    topic_id_of: TopicIdOf,
    produce: Produce,
    version: int,
) -> None:
    produce(moldau_topic, 3)
    answer = fetch(connection, moldau_topic, 1, version, topic_id=topic_id_of(moldau_topic))
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
    data = memoryview(in_memory(answer.records))
    found = []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found += [(record.offset, record.value) for record in read_records(data[:size])]
        data = data[size:]
    assert found == [(1, b"value"), (2, b"value")]


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_that_cannot_be_says_why(
    connection: KafkaConnection, moldau_topic: str, topic_id_of: TopicIdOf, version: int
) -> None:
    topic_id = topic_id_of(moldau_topic)
    beyond = fetch(connection, moldau_topic, 9, version, topic_id=topic_id)
    assert (beyond.error_code, beyond.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    missing = fetch(connection, moldau_topic, 0, version, topic_id=topic_id, partition=5)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 9:
        ahead = fetch(connection, moldau_topic, 0, version, topic_id=topic_id, epoch=99)
        assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    if version >= 13:
        unknown = fetch(connection, "", 0, version, topic_id=b"?" * 16)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(7, 19))
def test_a_fetch_session_that_was_not_given_is_refused(
    connection: KafkaConnection, version: int
) -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=12345, session_epoch=1, topics=[])
    response = connection.request(request, FetchResponse, version)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_what_is_asked_behind_a_waiting_fetch_does_not_wait_with_it(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    waits_longer_than_the_client = FetchRequest(
        max_wait_ms=10 * int(connection.timeout_seconds * 1000),
        min_bytes=1,
        topics=[
            FetchTopic(
                topic=moldau_topic,
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=99)],
            )
        ],
    )
    connection.post(waits_longer_than_the_client, 12)
    connection.post(MetadataRequest(topics=[]), 12)
    first, second = connection.receive(), connection.receive()
    assert isinstance(first, FetchResponse)
    assert first.topics[0].partitions[0].error_code == 0
    assert isinstance(second, MetadataResponse)
    # The next one waits again, until there is something.
    connection.post(waits_longer_than_the_client, 12)
    with KafkaConnection(connection.host, connection.port) as other:
        append(other, moldau_topic, {0: batch(b"x")}, 9)
    third = connection.receive()
    assert isinstance(third, FetchResponse)
    assert third.topics[0].partitions[0].high_watermark == 1


# ---- ListOffsets


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_found_by_time(
    connection: KafkaConnection, moldau_topic: str, produce: Produce, version: int
) -> None:
    produce(moldau_topic, 3)

    def find(timestamp: int, partition: int = 0) -> tuple[int, int, int]:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name=moldau_topic, partitions=[wanted])]
        )
        (topic,) = connection.request(request, ListOffsetsResponse, version).topics
        (found,) = topic.partitions
        assert (found.leader_epoch >= 0) == (version >= 4 and found.offset >= 0)
        return found.error_code, found.offset, found.timestamp

    assert find(LATEST) == (0, 3, -1)
    assert find(EARLIEST) == (0, 0, -1)
    assert find(1_001) == (0, 1, 1_001)
    assert find(0) == (0, 0, 1_000)
    assert find(9_999) == (0, -1, -1)
    assert find(LATEST, partition=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert find(MAX_TIMESTAMP) == (0, 2, 1_002)
    assert find(EARLIEST_LOCAL) == (0, 0, -1)
    assert find(LATEST_TIERED) == (0, -1, -1)
