"""The progress of a query as offsets of a group, on a real broker."""

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer

from moldau.client.admin import Admin
from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.client import KafkaClient
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.commits import GroupCommits
from moldau.spark.source.positions import Positions
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

NewName = Callable[[str], str]


def positions(topic: str, *offsets: int) -> Positions:
    places = (TopicPartition(topic, PartitionIndex(n)) for n in range(len(offsets)))
    return Positions(offsets=dict(zip(places, offsets, strict=True)), ids={topic: 1})


def lags(broker: Broker, group: str) -> dict[int, int | None]:
    return {found.partition: found.lag for found in Admin(broker.bootstrap).group(group).lags}


def test_the_lag_of_a_group_is_what_is_left_to_read(
    broker: Broker, topic: str, client: KafkaClient, fill: Callable[..., None], new_name: NewName
) -> None:
    group = new_name("spark-group")
    for partition in (0, 1):
        fill(topic, partition, count=10)
    commits = GroupCommits(client, group)
    commits.commit(positions(topic, 4, 0))
    assert lags(broker, group) == {0: 6, 1: 10}
    commits.commit(positions(topic, 10, 9))
    assert lags(broker, group) == {0: 0, 1: 1}


def test_a_group_with_members_is_refused(
    broker: Broker, topic: str, client: KafkaClient, new_name: NewName
) -> None:
    group = new_name("spark-group")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.2)
        return bool(consumer.assignment())

    try:
        wait_until(is_assigned, "the consumer has partitions")
        with pytest.raises(InvalidArgumentError, match="choose another groupId"):
            GroupCommits(client, group).commit(positions(topic, 1))
    finally:
        consumer.close()


def test_a_commit_that_fails_is_made_up_for_by_the_next(
    broker: Broker,
    topic: str,
    client: KafkaClient,
    fill: Callable[..., None],
    new_name: NewName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = new_name("spark-group")
    fill(topic, 0, count=10)
    commits = GroupCommits(KafkaClient(f"127.0.0.1:{free_ports(1)[0]}", timeout=1), group)
    with caplog.at_level(logging.WARNING):
        commits.commit(positions(topic, 4))
    assert group in caplog.text
    commits._client = client
    commits.commit(positions(topic, 4))
    assert lags(broker, group)[0] == 6
