"""Clients with fetch sessions read every record once, of many partitions that come and go."""

import asyncio
import logging
from collections.abc import Callable

import aiokafka
import kafka
import pytest

from moldau.client.kafka.producer import Producer
from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

PARTITIONS = 50


@pytest.fixture
def wide_topic(broker: Broker, new_name: Callable[[str], str]) -> str:
    name = new_name("wide")
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=PARTITIONS)
    return name


def produce(broker: Broker, topic: str, numbers: range) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, str(number).encode(), partition=number % PARTITIONS)


def test_kafka_python_reads_all_in_one_session(
    broker: Broker, wide_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        fetch_max_wait_ms=100,
    )
    places = [kafka.TopicPartition(wide_topic, index) for index in range(PARTITIONS)]
    consumer.assign(places)
    found: list[int] = []

    def has(count: int) -> bool:
        for messages in consumer.poll(timeout_ms=200).values():
            found.extend(int(message.value) for message in messages)
        return len(found) >= count

    with caplog.at_level(logging.DEBUG, logger="kafka.consumer.fetcher"):
        produce(broker, wide_topic, range(50))
        wait_until(lambda: has(50), "all is read")
        # What is paused is forgotten, and comes back.
        consumer.pause(*places[:25])
        consumer.poll(timeout_ms=200)
        consumer.resume(*places[:25])
        produce(broker, wide_topic, range(50, 150))
        wait_until(lambda: has(150), "all is read")
        assert sorted(found) == [*range(150)]
        # Another assignment, in the same session.
        found.clear()
        consumer.assign(places[10:])
        for place in places[10:]:
            consumer.seek(place, 3 if place.partition % 2 else 0)
        wait_until(lambda: has(60), "what is behind the new offsets is read")
        assert sorted(found) == [
            each for each in range(10, 150) if each % 50 >= 10 and not each % 2
        ]
    consumer.close()
    said = [record.getMessage() for record in caplog.records]
    assert sum("created a new incremental fetch session" in line for line in said) == 1
    assert any("sent an incremental fetch response for session" in line for line in said)


def test_aiokafka_reads_all(broker: Broker, wide_topic: str) -> None:
    produce(broker, wide_topic, range(200))

    async def run() -> list[int]:
        found: list[int] = []
        async with aiokafka.AIOKafkaConsumer(
            wide_topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            while len(found) < 200:
                batch = await consumer.getmany(timeout_ms=500)
                found += [int(each.value or b"") for some in batch.values() for each in some]
        return sorted(found)

    assert asyncio.run(asyncio.wait_for(run(), 30)) == [*range(200)]
