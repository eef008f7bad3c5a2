"""Fetching a range from a real broker: everything once, over deletions and lost leaders."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.client.errors import ClientError, TimedOutError
from moldau.client.kafka.admin import Admin
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.source.fetcher import RangesFetcher
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import DataLossError
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.wire.messages.fetch import FetchRequest
from moldau.wire.schema import Request

pytestmark = pytest.mark.system

OPTIONS = replace(
    parse_read_options({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}, streaming=False),
    fetch_bytes_max=1 << 20,
)


def batch(values: list[bytes]) -> bytes:
    now = TimestampMs(1_700_000_000_000)
    return build_batch([Record(Offset(0), now, None, value, []) for value in values])


def fetched(
    client: KafkaClient, ranges: list[OffsetRange], options: ReadOptions = OPTIONS
) -> Iterator[tuple[int, int]]:
    """Partition and offset of what is read."""
    return places(iter(RangesFetcher(client, ranges, options)))


def places(found: Iterator[Any]) -> Iterator[tuple[int, int]]:
    for rows in found:
        yield from zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)


def read(client: KafkaClient, planned: OffsetRange, options: ReadOptions = OPTIONS) -> list[int]:
    """The offsets that were read."""
    return [offset for _, offset in fetched(client, [planned], options)]


def the_range(topic: str, start: int, end: int, **more: int) -> OffsetRange:
    return OffsetRange(topic=topic, partition=0, start=start, end=end, **more)


def delete_before(client: KafkaClient, topic: str, offset: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=60_000
    )
    answer = client.leader(topic, 0).request(request, DeleteRecordsResponse)
    assert not answer.topics[0].partitions[0].error_code


def test_a_range_is_read_from_many_small_answers(topic: str, client: KafkaClient) -> None:
    for _ in range(30):
        client.produce(topic, 0, batch([b"x" * 200] * 10))
    small = replace(OPTIONS, fetch_bytes_max=5000)
    assert read(client, the_range(topic, 0, 300), small) == list(range(300))
    assert read(client, the_range(topic, 105, 217), small) == list(range(105, 217))


def test_a_reader_that_stops_half_way_leaves_a_client_that_works(
    topic: str, client: KafkaClient
) -> None:
    for _ in range(30):
        client.produce(topic, 0, batch([b"x" * 200] * 10))
    small = replace(OPTIONS, fetch_bytes_max=5000)
    reading: Any = iter(RangesFetcher(client, [the_range(topic, 0, 300)], small))
    next(reading)
    reading.close()
    assert read(client, the_range(topic, 0, 300)) == list(range(300))


@pytest.fixture
def wide(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    """A topic of 40 partitions, with 1 to 40 records."""
    name = new_name("wide")
    client.create_topic(name, partitions=40)
    for partition in range(40):
        client.produce(name, partition, batch([b"x" * 100] * (partition + 1)))
    return name


def wide_ranges(topic: str) -> list[OffsetRange]:
    return [
        OffsetRange(topic=topic, partition=partition, start=0, end=partition + 1)
        for partition in range(40)
    ]


def test_many_ranges_are_read_by_one_request(
    wide: str, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[FetchRequest] = []
    post = KafkaConnection.post

    def counted(self: KafkaConnection, message: Request, *more: Any, **options: Any) -> int:
        requests.extend([message] if isinstance(message, FetchRequest) else [])
        return post(self, message, *more, **options)

    monkeypatch.setattr(KafkaConnection, "post", counted)
    every = [(partition, offset) for partition in range(40) for offset in range(partition + 1)]
    assert sorted(fetched(client, wide_ranges(wide))) == every
    assert len(requests) == 1
    # An answer without room for all of them, and ranges that share a partition.
    halves = [
        replace(planned, start=first, end=end)
        for planned in wide_ranges(wide)
        for first, end in ((0, planned.end // 2), (planned.end // 2, planned.end))
        if first < end
    ]
    assert sorted(fetched(client, halves, replace(OPTIONS, fetch_bytes_max=8192))) == every


def test_what_many_ranges_miss_is_reported_as_that_of_one(
    wide: str, client: KafkaClient, broker: Broker
) -> None:
    delete_before(client, wide, 1)
    with pytest.raises(DataLossError, match=f"offsets 0 to 0 of {wide}-0 were deleted"):
        list(fetched(client, wide_ranges(wide)))
    rest = fetched(client, wide_ranges(wide), replace(OPTIONS, fail_on_data_loss=False))
    assert len(list(rest)) == 40 * 41 // 2 - 1


@pytest.mark.safety
def test_deleted_offsets_are_a_loss_that_is_reported(topic: str, client: KafkaClient) -> None:
    for _ in range(3):
        client.produce(topic, 0, batch([b"x"] * 10))
    delete_before(client, topic, 20)
    with pytest.raises(DataLossError, match=r"offsets 5 to 19 of .* were deleted") as caught:
        read(client, the_range(topic, 5, 30))
    assert "failOnDataLoss" in str(caught.value)


def test_deleted_offsets_can_be_passed_over(
    topic: str, client: KafkaClient, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        client.produce(topic, 0, batch([b"x"] * 10))
    delete_before(client, topic, 20)
    tolerant = replace(OPTIONS, fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        assert read(client, the_range(topic, 5, 30), tolerant) == list(range(20, 30))
    assert "offsets 5 to 19" in caplog.text
    assert read(client, the_range(topic, 5, 15), tolerant) == []


@pytest.mark.safety
def test_offsets_beyond_the_end_are_a_loss(topic: str, client: KafkaClient) -> None:
    """The topic was made again, or lost its end."""
    client.produce(topic, 0, batch([b"x"] * 10))
    with pytest.raises(DataLossError, match="the partition ends at 10"):
        read(client, the_range(topic, 50, 60))
    assert read(client, the_range(topic, 50, 60), replace(OPTIONS, fail_on_data_loss=False)) == []


def test_another_topic_of_the_same_name_is_not_read(topic: str, client: KafkaClient) -> None:
    client.produce(topic, 0, batch([b"x"] * 10))
    with pytest.raises(DataLossError, match="was deleted and recreated"):
        read(client, the_range(topic, 0, 10, topic_id=12345))


@pytest.mark.safety
def test_a_deleted_topic_is_a_loss(broker: Broker, topic: str, client: KafkaClient) -> None:
    client.produce(topic, 0, batch([b"x"] * 10))
    Admin(broker.bootstrap).delete_topic(topic)
    with pytest.raises(DataLossError, match="cannot be read"):
        read(client, the_range(topic, 0, 10))
    assert read(client, the_range(topic, 0, 10), replace(OPTIONS, fail_on_data_loss=False)) == []


def test_a_partition_that_does_not_grow_is_not_waited_for_forever(
    topic: str, client: KafkaClient
) -> None:
    client.produce(topic, 0, batch([b"x"] * 10))
    hasty = replace(OPTIONS, timeout_seconds=1)
    with pytest.raises(TimedOutError, match=r"from 10 on: timed out .* up to 10") as caught:
        read(client, the_range(topic, 0, 11), hasty)
    assert "kafka.request.timeout.ms" in caught.value.hint


def test_a_damaged_batch_is_named_by_its_place(
    topic: str, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce(topic, 0, batch([b"x"] * 10))
    answers = RangesFetcher._results

    def spoilt(self: RangesFetcher) -> Iterator[tuple[Any, Any]]:
        answer: Any
        for part, answer in answers(self):
            changed = bytearray(answer.records)
            changed[-1] ^= 1
            answer.records = memoryview(changed)
            yield part, answer

    monkeypatch.setattr(RangesFetcher, "_results", spoilt)
    with pytest.raises(ClientError, match=rf"{topic}-0 has a corrupt batch at or after offset 0"):
        read(client, the_range(topic, 0, 10))


def test_the_time_that_rows_take_is_not_time_without_an_answer(
    topic: str, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        client.produce(topic, 0, batch([b"x" * 200] * 10))
    late = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0], sleep=time.sleep)
    monkeypatch.setattr("moldau.spark.source.fetcher.time", clock)
    small = replace(OPTIONS, fetch_bytes_max=5000)
    fetcher = RangesFetcher(client, [the_range(topic, 0, 300)], small)
    reading = places(iter(fetcher))
    found = [next(reading)]
    late[0] += 1000
    for leader in fetcher._in_flight:
        leader.close()
    assert [*found, *reading] == [(0, offset) for offset in range(300)]


@pytest.mark.parametrize("read_committed", [True, False])
def test_aborted_records_are_read_only_by_those_who_read_everything(
    read_committed: bool,
    broker: Broker,
    topic: str,
    client: KafkaClient,
    new_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": new_name("spark-tx")}
    )
    producer.init_transactions(wait_seconds_max())
    for number, ending in enumerate(["commit", "abort", "commit"]):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"%d" % number, partition=0)
        if ending == "commit":
            producer.commit_transaction(wait_seconds_max())
        else:
            producer.flush(wait_seconds_max())
            producer.abort_transaction(wait_seconds_max())
    options = replace(OPTIONS, read_committed=read_committed)
    # Five records and a marker each.
    wanted = [*range(5), *range(6, 11), *range(12, 17)]
    if read_committed:
        wanted = [offset for offset in wanted if not 6 <= offset < 11]
    for _ in range(2):
        assert read(client, the_range(topic, 0, 18), options) == wanted
    warnings = [record.getMessage() for record in caplog.records]
    # Once in a process, and only those who read all.
    assert len(warnings) == (0 if read_committed else 1)
    assert all(topic in said and "kafka.isolation.level" in said for said in warnings)


@pytest.mark.safety
def test_leaders_lost_while_many_ranges_are_read_cost_nothing(
    new_name: Callable[[str], str],
) -> None:
    topic = new_name("wide")
    with Cluster(brokers=3) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic(topic, partitions=40)
        for partition in range(40):
            client.produce(topic, partition, batch([b"x" * 100] * (partition + 1)))
        options = replace(OPTIONS, fetch_bytes_max=8192, timeout_seconds=wait_seconds_max())
        found: list[tuple[int, int]] = []
        for place in fetched(client, wide_ranges(topic), options):
            if not found:
                cluster.leader(topic, 20).kill()
            found.append(place)
    assert sorted(found) == [(p, offset) for p in range(40) for offset in range(p + 1)]


@pytest.mark.safety
def test_a_leader_lost_half_way_costs_nothing(new_name: Callable[[str], str]) -> None:
    name = new_name("spark")
    with Cluster(brokers=3) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic(name, partitions=1)
        for _ in range(40):
            client.produce(name, 0, batch([b"x" * 500] * 10))
        planned = the_range(name, 0, 400)
        options = replace(OPTIONS, fetch_bytes_max=20_000, timeout_seconds=wait_seconds_max())
        reading = fetched(client, [planned], options)
        found = [next(reading) for _ in range(15)]
        cluster.leader(name, 0).kill()
        found += reading
    assert found == [(0, offset) for offset in range(400)]


def test_a_leader_that_hangs_is_left_for_its_successor(new_name: Callable[[str], str]) -> None:
    """It still takes connections, and stands first in the list of brokers."""
    name = new_name("spark")
    with Cluster(brokers=3) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic(name, partitions=1)
            for _ in range(40):
                client.produce(name, 0, batch([b"x" * 500] * 10))
        leader = cluster.leader(name, 0)
        others = [broker.address for broker in cluster.brokers if broker is not leader]
        planned = the_range(name, 0, 400)
        options = replace(OPTIONS, fetch_bytes_max=20_000, timeout_seconds=wait_seconds_max())
        with KafkaClient(",".join([leader.address, *others]), timeout=5) as client:
            reading = fetched(client, [planned], options)
            found = [next(reading) for _ in range(15)]
            leader.pause()
            try:
                found += reading
            finally:
                leader.resume()
    assert found == [(0, offset) for offset in range(400)]
