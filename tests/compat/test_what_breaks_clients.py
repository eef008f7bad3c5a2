"""What is known to break Kafka clients, each with a test, numbered as the project numbers them.

Those on groups are in test_what_breaks_groups.py, those on transactions in test_read_committed.py;
those on changes of leaders come with the versions that serve them.
"""

import struct
import threading
import time
from collections.abc import Callable

import pytest
from chunks import in_memory

from moldau.model.errors import ErrorCode
from moldau.model.slices import Chunk
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import build_batch, read_records
from moldau.testing.broker import Broker
from moldau.wire.framing import frame_request
from moldau.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse
from moldau.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from raw_client import (
    TIMESTAMP_MS,
    RawClient,
    batch,
    batches,
    produce_request,
    record,
    records,
)

pytestmark = [pytest.mark.compat, pytest.mark.system]

SEQUENCE_MAX = 2**31 - 1


def frame(body: bytes) -> list[Chunk]:
    return [struct.pack(">i", len(body)), body]


# -- 1 to 5: versions and headers


def test_01_api_versions_in_an_unknown_version_gets_the_list_in_version_0(raw: RawClient) -> None:
    head = struct.pack(">hhih", 18, 99, 7, 4) + b"test" + b"\0"
    raw.post_raw(frame(head + b"\x02x\x02y\0"))
    reply = raw.receive_raw()
    assert bytes(reply[:4]) == struct.pack(">i", 7)
    answer = ApiVersionsResponse.decode(reply, 0, 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {api.api_key for api in answer.api_keys} >= {0, 1, 2, 3, 18}


@pytest.mark.parametrize("version", range(5))
def test_02_api_versions_has_the_old_response_header_and_client_ids_are_not_compact(
    raw: RawClient, version: int
) -> None:
    # A client id of 200 bytes: read as a compact string, the request would not add up.
    raw.client_id = "c" * 200
    request = ApiVersionsRequest(client_software_name="name", client_software_version="1")
    raw.post_raw(frame_request(request, version, 41, raw.client_id))
    reply = raw.receive_raw()
    answer = ApiVersionsResponse.decode(reply, version, 4)
    assert bytes(reply[:4]) == struct.pack(">i", 41)
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.api_keys) > 20


def test_03_unknown_tagged_fields_are_skipped(raw: RawClient) -> None:
    tagged = b"\x02" + b"\x63\x03abc" + b"\x64\x00"
    # Metadata v9: header 2 with two unknown tags, no topics, three flags, two unknown tags.
    head = struct.pack(">hhih", 3, 9, 8, 4) + b"test" + tagged
    raw.post_raw(frame(head + b"\x01" + b"\0\0\0" + tagged))
    reply = raw.receive_raw()
    assert bytes(reply[:5]) == struct.pack(">i", 8) + b"\0"


def test_04_produce_is_advertised_from_0_so_that_old_clients_compress(raw: RawClient) -> None:
    assert raw.served_versions()[0].first == 0


def test_05_no_version_range_is_empty(raw: RawClient) -> None:
    for key, versions in raw.served_versions().items():
        assert 0 <= versions.first <= versions.last, key


# -- 6: null where Java expects empty


def test_06_lists_are_empty_and_not_null(raw: RawClient, new_name: Callable[[str], str]) -> None:
    name = new_name("topic")
    asked = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    created = raw.request(CreateTopicsRequest(topics=[asked]), CreateTopicsResponse).topics[0]
    assert created.configs is not None
    refused = raw.request(CreateTopicsRequest(topics=[asked]), CreateTopicsResponse).topics[0]
    assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert refused.configs is not None
    described = raw.request(
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name=name)], response_partition_limit=10
        ),
        DescribeTopicPartitionsResponse,
    ).topics[0]
    for partition in described.partitions:
        assert partition.eligible_leader_replicas is not None
        assert partition.last_known_elr is not None
        assert partition.offline_replicas is not None


# -- 7 to 10: fetching


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_07_a_fetch_inside_a_batch_returns_the_whole_batch(
    raw: RawClient, topic: str, offset: int
) -> None:
    raw.produce_well(topic, b"0", b"1", b"2", b"3", b"4")
    raw.produce_well(topic, b"5")
    assert [item.offset for item in records(raw.fetch(topic, offset).records)] == list(range(6))


def test_08_one_batch_is_always_returned_but_the_total_is_capped(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"), partitions=3)
    large = batch([b"x" * 50_000])
    for partition in range(3):
        for _ in range(2):
            assert raw.produce(topic, large, partition=partition).error_code == ErrorCode.NONE

    def sizes(bytes_max: int, partition_bytes_max: int) -> list[int]:
        answer = raw.fetch_response(
            topic,
            0,
            partitions=[0, 1, 2],
            bytes_max=bytes_max,
            partition_bytes_max=partition_bytes_max,
        )
        return [len(batches(part.records)) for part in answer.topics[0].partitions]

    assert sizes(1, 1) == [1, 0, 0]
    assert sizes(1, 1 << 20) == [1, 0, 0]
    assert sizes(len(large) * 2 + 100, 1 << 20) == [2, 0, 0]
    assert sum(sizes(len(large) * 4 + 100, 1 << 20)) == 4
    assert sizes(1 << 20, 1 << 20) == [2, 2, 2]


def test_09_a_fetch_session_that_is_handed_out_is_known_and_no_other(
    raw: RawClient, topic: str
) -> None:
    raw.produce_well(topic, b"x")
    opened = raw.fetch_response(topic, 0, session_id=0, session_epoch=0)
    assert opened.error_code == ErrorCode.NONE
    assert records(opened.topics[0].partitions[0].records)
    resumed = raw.fetch_response(topic, 1, session_id=opened.session_id, session_epoch=1)
    assert (resumed.error_code, resumed.session_id) == (ErrorCode.NONE, opened.session_id)
    assert resumed.topics == []
    unknown = raw.fetch_response(topic, 0, session_id=opened.session_id + 77, session_epoch=1)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    without = raw.fetch_response(topic, 0, session_id=0, session_epoch=-1)
    assert (without.error_code, without.session_id) == (ErrorCode.NONE, 0)


def test_10_a_fetch_without_data_waits_and_is_woken_by_data(
    broker: Broker, raw: RawClient, topic: str
) -> None:
    wait_ms = 400
    started = time.monotonic()
    empty = raw.fetch(topic, 0, wait_ms=wait_ms)
    assert time.monotonic() - started >= wait_ms / 1000 * 0.9
    assert (empty.error_code, in_memory(empty.records)) == (ErrorCode.NONE, b"")

    def produce_later() -> None:
        time.sleep(0.2)
        with RawClient(broker.host, broker.port) as other:
            other.produce_well(topic, b"late")

    thread = threading.Thread(target=produce_later)
    thread.start()
    # Longer than the connection waits for an answer: if nobody wakes it, that fails.
    woken = raw.fetch(topic, 0, wait_ms=int(raw.timeout_seconds * 2000))
    thread.join()
    assert [item.value for item in records(woken.records)] == [b"late"]


# -- 11 to 15: ids, epochs and offsets


def test_11_topic_ids_are_stable_and_new_on_recreation(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    name = raw.create_well(new_name("topic"))
    first = raw.metadata(name).topic_id
    assert first != bytes(16)
    assert raw.metadata(name).topic_id == first
    raw.produce_well(name, b"old")
    assert raw.delete(name) == ErrorCode.NONE
    raw.create_well(name)
    second = raw.metadata(name).topic_id
    assert second not in (first, bytes(16))
    gone = raw.fetch_response(name, 0, version=13, topic_id=first)
    assert gone.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    there = raw.fetch_response(name, 0, version=13, topic_id=second)
    assert there.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert raw.read_all(name) == []


def test_12_leader_epochs_agree(raw: RawClient, topic: str) -> None:
    epoch = raw.metadata(topic).partitions[0].leader_epoch
    assert epoch >= 0
    raw.produce_well(topic, b"x")
    fetched = raw.fetch(topic, 0, leader_epoch=epoch)
    assert fetched.error_code == ErrorCode.NONE
    assert read_header(in_memory(fetched.records)).leader_epoch == epoch
    assert raw.list_offset(topic, -1).leader_epoch == epoch
    assert raw.fetch(topic, 0, leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    if epoch:
        older = raw.fetch(topic, 0, leader_epoch=epoch - 1)
        assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_13_epoch_ends_are_known_and_future_ones_are_not(raw: RawClient, topic: str) -> None:
    raw.produce_well(topic, b"a", b"b", b"c")
    epoch = raw.metadata(topic).partitions[0].leader_epoch
    assert epoch_end(raw, topic, epoch) == (ErrorCode.NONE, epoch, 3)
    assert epoch_end(raw, topic, epoch + 5) == (ErrorCode.NONE, -1, -1)


def test_13_a_past_epoch_ends_where_the_next_began(new_name: Callable[[str], str]) -> None:
    name = new_name("topic")
    with Broker() as own:
        with RawClient(own.host, own.port) as raw:
            raw.create_well(name)
            raw.produce_well(name, b"a", b"b")
            first = raw.metadata(name).partitions[0].leader_epoch
        own.restart()
        with RawClient(own.host, own.port) as raw:
            raw.produce_well(name, b"c")
            second = raw.metadata(name).partitions[0].leader_epoch
            assert second > first
            assert epoch_end(raw, name, first) == (ErrorCode.NONE, first, 2)
            assert epoch_end(raw, name, second) == (ErrorCode.NONE, second, 3)
            stale = raw.fetch(name, 0, leader_epoch=first)
            assert stale.error_code == ErrorCode.FENCED_LEADER_EPOCH


def epoch_end(raw: RawClient, topic: str, epoch: int) -> tuple[int, int, int]:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    answer = (
        raw.request(
            OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
            ),
            OffsetForLeaderEpochResponse,
        )
        .topics[0]
        .partitions[0]
    )
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_15_offsets_by_name_and_by_time(raw: RawClient, topic: str) -> None:
    # Times go back within the batch and between batches, as clients' clocks do.
    times = [[100, 300, 200], [150], [400, 400]]
    for group in times:
        data = build_batch([record(b"v", timestamp=time) for time in group])
        assert raw.produce(topic, data).error_code == ErrorCode.NONE

    def found(timestamp: int) -> tuple[int, int]:
        answer = raw.list_offset(topic, timestamp)
        assert answer.error_code == ErrorCode.NONE
        return answer.offset, answer.timestamp

    assert found(-1) == (6, -1)
    assert found(-2) == (0, -1)
    assert found(-3) == (4, 400)
    assert found(-4) == (0, -1)
    assert found(-5)[0] in (-1, 0)
    assert found(0) == (0, 100)
    assert found(100) == (0, 100)
    assert found(101) == (1, 300)
    assert found(300) == (1, 300)
    assert found(301) == (4, 400)
    assert found(401) == (-1, -1)
    assert raw.list_offset(topic, -1, isolation=1).offset == 6


def test_15_an_offset_outside_the_log_is_out_of_range(raw: RawClient, topic: str) -> None:
    raw.produce_well(topic, b"x")
    assert raw.fetch(topic, 1).error_code == ErrorCode.NONE
    for offset in (2, 100, -1):
        answer = raw.fetch(topic, offset)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert answer.high_watermark == 1


# -- 16 and 17: idempotent producers


def test_16_a_repeated_batch_among_the_last_five_gets_its_first_offset(
    raw: RawClient, topic: str
) -> None:
    producer, epoch = raw.new_producer()
    sent = [
        batch([b"a", b"b"], producer_id=producer, producer_epoch=epoch, sequence=number * 2)
        for number in range(7)
    ]
    assert [raw.produce(topic, data).base_offset for data in sent] == list(range(0, 14, 2))
    for number in range(2, 7):
        again = raw.produce(topic, sent[number])
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, number * 2)
    # Older than the window: known to be a repetition, or out of order; never appended again.
    forgotten = raw.produce(topic, sent[0]).error_code
    assert forgotten in (
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
    gap = batch([b"x"], producer_id=producer, producer_epoch=epoch, sequence=100)
    # What is missing may still be on its way; see decision 19.
    assert raw.produce(topic, gap).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [item.offset for item in raw.read_all(topic)] == list(range(14))


@pytest.mark.safety
def test_16_the_window_survives_a_restart() -> None:
    with Broker() as own:
        with RawClient(own.host, own.port) as raw:
            raw.create_well("topic")
            producer, epoch = raw.new_producer()
            sent = [
                batch([b"v"], producer_id=producer, producer_epoch=epoch, sequence=number)
                for number in range(3)
            ]
            for data in sent:
                raw.produce("topic", data)
        own.kill()
        own.start()
        with RawClient(own.host, own.port) as raw:
            assert [raw.produce("topic", data).base_offset for data in sent] == [0, 1, 2]
            assert len(raw.read_all("topic")) == 3
            assert raw.new_producer() != (producer, epoch)


def test_17_sequence_numbers_wrap_to_0(raw: RawClient, topic: str) -> None:
    producer, epoch = raw.new_producer()

    def send(sequence: int, count: int) -> tuple[int, int]:
        data = batch([b"v"] * count, producer_id=producer, producer_epoch=epoch, sequence=sequence)
        answer = raw.produce(topic, data)
        return answer.error_code, answer.base_offset

    # A producer that the broker has not seen may start anywhere.
    assert send(SEQUENCE_MAX - 2, 2) == (ErrorCode.NONE, 0)
    # This batch crosses the end: its records are numbered max, 0, 1.
    assert send(SEQUENCE_MAX, 3) == (ErrorCode.NONE, 2)
    assert send(SEQUENCE_MAX, 3) == (ErrorCode.NONE, 2)
    assert send(2, 1) == (ErrorCode.NONE, 5)
    assert send(SEQUENCE_MAX, 1)[0] != ErrorCode.NONE


# -- 24 and 25: writing


def test_24_a_batch_above_the_limit_is_too_large_and_the_topic_goes_on(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"), max_message_bytes="2000")
    assert raw.produce(topic, batch([b"x" * 3000])).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce_well(topic, b"x" * 1000) == 0


def test_24_acks_0_gets_no_response_at_all(raw: RawClient, topic: str) -> None:
    for number in range(5):
        request = produce_request(topic, batch([b"%d" % number]), acks=0)
        raw.post(request, 9, reply=False)
    # The next frame on the connection answers the next request, and nothing before it.
    last = raw.produce_well(topic, b"5")
    assert last == 5
    assert [item.value for item in raw.read_all(topic)] == [b"%d" % n for n in range(6)]


def test_24_no_client_is_throttled(raw: RawClient, topic: str) -> None:
    assert raw.fetch_response(topic, 0).throttle_time_ms == 0
    assert raw.request(MetadataRequest(topics=[]), MetadataResponse).throttle_time_ms == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_25_every_codec_is_kept_as_it_was_sent(raw: RawClient, topic: str, codec: Codec) -> None:
    values = [b"value %d " % number * 20 for number in range(50)]
    sent = batch(values, codec=codec)
    assert raw.produce(topic, sent).base_offset == 0
    (got,) = batches(raw.fetch(topic, 0).records)
    # All but base offset and leader epoch, which the broker stamps.
    assert (got[8:12], got[16:]) == (sent[8:12], sent[16:])
    assert [item.value for item in read_records(got)] == values


@pytest.mark.parametrize("codec", list(Codec))
def test_25_append_time_is_stamped_with_a_valid_checksum(
    raw: RawClient, new_name: Callable[[str], str], codec: Codec
) -> None:
    topic = raw.create_well(new_name("topic"), message_timestamp_type="LogAppendTime")
    answer = raw.produce(topic, batch([b"a", b"b"], codec=codec))
    assert answer.error_code == ErrorCode.NONE
    assert answer.log_append_time_ms > TIMESTAMP_MS
    # read_records checks the checksum.
    (got,) = batches(raw.fetch(topic, 0).records)
    assert read_header(got).is_append_time
    assert [item.timestamp for item in read_records(got)] == [answer.log_append_time_ms] * 2


@pytest.mark.parametrize("codec", list(Codec))
def test_25_a_record_without_key_is_refused_by_a_compacted_topic(
    raw: RawClient, new_name: Callable[[str], str], codec: Codec
) -> None:
    topic = raw.create_well(new_name("topic"), cleanup_policy="compact")
    keyless = build_batch([record(b"a"), record(b"b", key=None)], codec=codec)
    assert raw.produce(topic, keyless).error_code == ErrorCode.INVALID_RECORD
    assert raw.produce(topic, build_batch([record(b"a")], codec=codec)).base_offset == 0


# -- the runners-up


def test_metadata_creates_a_topic_only_if_it_may(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    name = new_name("topic")
    assert raw.metadata(name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    first = raw.metadata(name, creates=True).error_code
    assert first in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
    there = raw.metadata(name)
    assert (there.error_code, len(there.partitions)) == (ErrorCode.NONE, 3)
    assert raw.produce_well(name, b"first") == 0
