"""Transactions of unmodified clients: what they commit is read, what they abort is not."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

TRANSACTIONS = [("one", True), ("two", False), ("three", True)]
WANTED = [b"one-0", b"one-1", b"three-0", b"three-1"]


def confluent_writes(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(wait_seconds_max())
    for name, is_commit in TRANSACTIONS:
        producer.begin_transaction()
        for number in range(2):
            producer.produce(topic, f"{name}-{number}", partition=0)
        # An abort would drop what was not sent yet.
        assert producer.flush(wait_seconds_max()) == 0
        if is_commit:
            producer.commit_transaction(wait_seconds_max())
        else:
            producer.abort_transaction(wait_seconds_max())


def kafka_python_writes(address: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id=f"tx-{topic}")
    producer.init_transactions()
    for name, is_commit in TRANSACTIONS:
        producer.begin_transaction()
        for number in range(2):
            producer.send(topic, f"{name}-{number}".encode(), partition=0)
        producer.flush(wait_seconds_max())
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(wait_seconds_max())


def aiokafka_writes(address: str, topic: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id=f"tx-{topic}")
        await producer.start()
        try:
            for name, is_commit in TRANSACTIONS:
                await producer.begin_transaction()
                for number in range(2):
                    value = f"{name}-{number}".encode()
                    await producer.send_and_wait(topic, value, partition=0)
                if is_commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(write())


def confluent_reads(address: str, topic: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topic,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found = consumer.consume(len(WANTED), timeout=wait_seconds_max()) + consumer.consume(
        1, timeout=0.3
    )
    consumer.close()
    return [message.value() or b"" for message in found]


def kafka_python_reads(address: str, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(values(consumer.poll(timeout_ms=500)))
        return len(found) >= len(WANTED)

    wait_until(has_all, "kafka-python reads", describe=lambda: found)
    found += values(consumer.poll(timeout_ms=300))
    consumer.close()
    return found


def values(polled: dict[Any, list[Any]]) -> list[bytes]:
    return [message.value for messages in polled.values() for message in messages]


def aiokafka_reads(address: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([AioPartition(topic, 0)])
        found: list[bytes] = []
        async with asyncio.timeout(wait_seconds_max()):
            while len(found) < len(WANTED):
                found.append((await consumer.getone()).value)
        rest = await consumer.getmany(timeout_ms=300)
        await consumer.stop()
        return found + [message.value for some in rest.values() for message in some]

    return asyncio.run(read())


@pytest.mark.parametrize("write", [confluent_writes, kafka_python_writes, aiokafka_writes])
def test_what_a_client_commits_is_read_by_all_and_what_it_aborts_by_none(
    moldau_session_broker: Broker, write: Callable[[str, str], None]
) -> None:
    address, topic = moldau_session_broker.bootstrap, f"tx-{uuid.uuid4()}"
    write(address, topic)
    for read in (confluent_reads, kafka_python_reads, aiokafka_reads):
        assert read(address, topic) == WANTED, read.__name__


def test_a_second_producer_with_the_same_id_locks_the_first_out(
    moldau_session_broker: Broker,
) -> None:
    address, topic = moldau_session_broker.bootstrap, f"tx-{uuid.uuid4()}"
    config = {"bootstrap.servers": address, "transactional.id": topic}
    first = Producer(config, logger=None)
    first.init_transactions(wait_seconds_max())
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    assert first.flush(wait_seconds_max()) == 0
    second = Producer(config, logger=None)
    second.init_transactions(wait_seconds_max())
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(wait_seconds_max())
    assert raised.value.args[0].fatal()
    second.begin_transaction()
    for value in WANTED:
        second.produce(topic, value, partition=0)
    second.commit_transaction(wait_seconds_max())
    assert confluent_reads(address, topic) == WANTED
