"""A key belongs to one partition, whatever door its messages come through."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import pytest
from kafka import KafkaProducer

from moldau import (
    Admin,
    AsyncProducer,
    Consumer,
    Outgoing,
    Producer,
    ProducerConfig,
    QueueClient,
)
from moldau.client.kafka.librdkafka_settings import producer_settings
from moldau.records.murmur2 import partition_of
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

PARTITIONS = 7
KEYS = ["", "a", "customer-1", "customer-2", "Moldau", "Vltava", "ключ", "x" * 100]


def by_producer(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.send_many(topic, [(key, "v") for key in KEYS])


def by_async_producer(broker: Broker, topic: str) -> None:
    async def send() -> None:
        async with AsyncProducer(broker.bootstrap) as producer:
            for key in KEYS:
                await producer.send(topic, "v", key=key)

    asyncio.run(send())


def by_command(broker: Broker, topic: str) -> None:
    lines = "".join(f"{key}:v\n" for key in KEYS)
    command = [sys.executable, "-m", "moldau", "produce", topic, "-k", ":", "-b", broker.bootstrap]
    subprocess.run(command, input=lines, text=True, check=True, timeout=wait_seconds_max())


def by_queue_client(broker: Broker, topic: str) -> None:
    with QueueClient(broker.grpc_address) as client:
        client.send_many(topic, [Outgoing("v", key=key) for key in KEYS])


def by_single_grpc_calls(broker: Broker, topic: str) -> None:
    with QueueClient(broker.grpc_address) as client:
        for key in KEYS:
            client.send(topic, "v", key=key)


def by_http(broker: Broker, topic: str) -> None:
    body = json.dumps({"records": [{"key": key, "value": "v"} for key in KEYS]}).encode()
    url = f"http://{broker.http_address}/api/v1/topics/{topic}/records"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=wait_seconds_max()) as response:
        assert response.status == 200


def by_kafka_python(broker: Broker, topic: str) -> None:
    """Which places keys as Java does."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    try:
        for key in KEYS:
            producer.send(topic, b"v", key=key.encode()).get(30)
    finally:
        producer.close()


@pytest.mark.parametrize(
    "door",
    [
        by_producer,
        by_async_producer,
        by_command,
        by_queue_client,
        by_single_grpc_calls,
        by_http,
        by_kafka_python,
    ],
)
def test_all_protocols_put_a_key_into_the_same_partition(
    moldau_session_broker: Broker, door: Callable[[Broker, str], None]
) -> None:
    topic = f"keys-{door.__name__}"
    Admin(moldau_session_broker.bootstrap).create_topic(topic, partitions=PARTITIONS)
    door(moldau_session_broker, topic)
    with Consumer(moldau_session_broker.bootstrap) as consumer:
        consumer.subscribe(topic)
        found: dict[bytes, int] = {}
        while len(found) < len(KEYS) and (messages := consumer.poll(wait_seconds_max())):
            found |= {message.key or b"": message.partition for message in messages}
    assert found == {key.encode(): partition_of(key.encode(), PARTITIONS) for key in KEYS}


def test_another_partitioner_can_be_asked_for() -> None:
    other = {"partitioner": "consistent_random"}
    config = ProducerConfig(bootstrap_servers="localhost:1", extra=other)
    assert config.settings(config.acks)["partitioner"] == "consistent_random"  # type: ignore[arg-type]
    assert producer_settings("localhost:1", extra=other)["partitioner"] == "consistent_random"
