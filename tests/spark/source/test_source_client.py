"""Questions to a real broker: which topics and partitions there are, and their offsets."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from moldau.client.errors import InvalidArgumentError, NotFoundError, TimedOutError
from moldau.client.kafka.admin import Admin
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.positions import DataLossError
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.source_client import (
    SourceClient,
    ending_offsets,
    partitions_of,
    starting_offsets,
)
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

FIRST = 1_700_000_000_000
Fill = Callable[..., None]


def options(broker: Broker, streaming: bool = False, **given: str) -> ReadOptions:
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    return parse_read_options({**servers, **given}, streaming=streaming)


@contextmanager
def asked(broker: Broker, **given: Any) -> Iterator[SourceClient]:
    with closing(SourceClient(options(broker, **given))) as cluster:
        yield cluster


def resolved(broker: Broker, topic: str, **given: Any) -> tuple[list[int], list[int]]:
    """Where a batch read of both partitions starts and ends."""
    parsed = options(broker, subscribe=topic, **given)
    with closing(SourceClient(parsed)) as cluster:
        places = partitions_of(cluster.topics())
        starts = starting_offsets(parsed, cluster, places)
        ends = ending_offsets(parsed, cluster, places)
    return [starts[place] for place in places], [ends[place] for place in places]


def test_topics_are_found_by_name_pattern_and_partition(broker: Broker, topic: str) -> None:
    with asked(broker, subscribe=topic) as cluster:
        view = cluster.topics()[topic]
    assert view.partitions == (0, 1)
    assert view.id is not None
    with asked(broker, subscribePattern=f"{topic[:3]}.*{topic[-3:]}") as cluster:
        assert cluster.topics()[topic] == view
    with asked(broker, assign=f'{{"{topic}": [1]}}') as cluster:
        assert cluster.topics()[topic].partitions == (1,)


def test_a_pattern_matches_whole_names(broker: Broker, topic: str) -> None:
    with asked(broker, subscribePattern=topic[:-1]) as cluster:
        assert topic not in cluster.topics()


def test_an_unknown_topic_is_named_with_its_option(broker: Broker, topic: str) -> None:
    with (
        asked(broker, subscribe=f"{topic},nowhere") as cluster,
        pytest.raises(NotFoundError, match="unknown topic nowhere: see option subscribe"),
    ):
        cluster.topics()


def test_topics_that_were_deleted_may_be_left_out(broker: Broker, topic: str) -> None:
    with asked(broker, subscribe=f"{topic},nowhere") as cluster:
        assert set(cluster.topics(missing_is_fine=True)) == {topic}


def test_an_unknown_partition_is_named_with_its_option(broker: Broker, topic: str) -> None:
    with (
        asked(broker, assign=f'{{"{topic}": [0, 5]}}') as cluster,
        pytest.raises(NotFoundError, match="partitions 0 to 1: see option assign"),
    ):
        cluster.topics()


def test_no_broker_is_an_error_after_the_timeout() -> None:
    port = free_ports(1)[0]
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.request.timeout.ms": "300",
        "subscribe": "a",
    }
    with (
        closing(SourceClient(parse_read_options(given, streaming=False))) as cluster,
        pytest.raises(TimedOutError, match=f"find topic a.*{port}"),
    ):
        cluster.topics()


def test_a_batch_goes_from_the_earliest_to_the_latest(
    broker: Broker, topic: str, fill: Fill
) -> None:
    fill(topic, 0, count=10)
    assert resolved(broker, topic) == ([0, 0], [10, 0])


def test_times_become_offsets(broker: Broker, topic: str, fill: Fill) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=10)
    found = resolved(
        broker, topic, startingTimestamp=str(FIRST + 3), endingTimestamp=str(FIRST + 7)
    )
    assert found == ([3, 3], [7, 7])
    by_partition = f'{{"{topic}": {{"0": {FIRST + 2}, "1": {FIRST + 9}}}}}'
    assert resolved(broker, topic, startingOffsetsByTimestamp=by_partition)[0] == [2, 9]


def test_an_end_after_everything_is_the_latest(broker: Broker, topic: str, fill: Fill) -> None:
    fill(topic, 0, count=10)
    assert resolved(broker, topic, endingTimestamp=str(FIRST + 99))[1] == [10, 0]


def test_a_start_after_everything_is_an_error_unless_said_otherwise(
    broker: Broker, topic: str, fill: Fill
) -> None:
    fill(topic, 0, count=10)
    with pytest.raises(InvalidArgumentError, match="startingTimestamp"):
        resolved(broker, topic, startingTimestamp=str(FIRST + 5))
    found = resolved(
        broker,
        topic,
        startingTimestamp=str(FIRST + 5),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert found[0] == [5, 0]


def test_offsets_of_partitions_are_taken_as_given(broker: Broker, topic: str, fill: Fill) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=10)
    found = resolved(
        broker,
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 4, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 7, "1": -1}}}}',
    )
    assert found == ([4, 0], [7, 10])


def test_offsets_must_name_every_partition_and_no_other(broker: Broker, topic: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{topic}-1 is missing"):
        resolved(broker, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}')
    with pytest.raises(InvalidArgumentError, match=f"{topic}-2, which is not read"):
        resolved(broker, topic, startingOffsets=f'{{"{topic}": {{"0": 0, "1": 0, "2": 0}}}}')


@pytest.mark.safety
def test_offsets_that_are_not_there_are_a_loss(broker: Broker, topic: str, fill: Fill) -> None:
    fill(topic, 0, count=10)
    wanted = f'{{"{topic}": {{"0": 50, "1": -2}}}}'
    with pytest.raises(DataLossError, match="startingOffsets names offset 50"):
        resolved(broker, topic, startingOffsets=wanted)
    assert resolved(broker, topic, startingOffsets=wanted, failOnDataLoss="false")[0] == [10, 0]


def test_partitions_led_by_others_are_asked_there(
    broker: Broker, topic: str, client: KafkaClient, fill: Fill
) -> None:
    fill(topic, 1, count=3)
    with asked(broker, subscribe=topic) as cluster:
        places = [TopicPartition(topic, PartitionIndex(n)) for n in (0, 1)]
        assert cluster.latest(places) == {places[0]: 0, places[1]: 3}
        assert cluster.earliest(places) == {places[0]: 0, places[1]: 0}
        assert cluster.offsets({}) == {}


# -- the progress of a query as offsets of a group


def places(topic: str, *offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, PartitionIndex(n)): offset for n, offset in enumerate(offsets)}


def lags(broker: Broker, group: str) -> dict[int, int | None]:
    return {found.partition: found.lag for found in Admin(broker.bootstrap).group(group).lags}


def test_the_lag_of_a_group_is_what_is_left_to_read(
    broker: Broker, topic: str, fill: Fill, new_name: Callable[[str], str]
) -> None:
    group = new_name("spark-group")
    for partition in (0, 1):
        fill(topic, partition, count=10)
    with asked(broker, subscribe=topic) as cluster:
        cluster.commit(group, places(topic, 4, 0))
        assert lags(broker, group) == {0: 6, 1: 10}
        cluster.commit(group, places(topic, 10, 9))
    assert lags(broker, group) == {0: 0, 1: 1}


def test_a_group_with_members_is_refused(
    broker: Broker, topic: str, new_name: Callable[[str], str]
) -> None:
    group = new_name("spark-group")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.2)
        return bool(consumer.assignment())

    try:
        wait_until(is_assigned, "the consumer has partitions")
        with (
            asked(broker, subscribe=topic) as cluster,
            pytest.raises(InvalidArgumentError, match="use another groupId"),
        ):
            cluster.commit(group, places(topic, 1))
    finally:
        consumer.close()
