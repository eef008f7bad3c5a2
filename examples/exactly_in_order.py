"""An idempotent producer: every record once, in order, at dense offsets from 0."""

import os
import uuid

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

BROKERS = os.environ.get("MOLDAU_BROKERS", "localhost:9092")
TOPIC = f"readings-{uuid.uuid4().hex[:8]}"
COUNT = 5_000

offsets: list[int | None] = []


def delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise SystemExit(f"not delivered: {error}")
    offsets.append(message.offset())


producer = Producer({"bootstrap.servers": BROKERS, "enable.idempotence": True, "linger.ms": 5})
for number in range(COUNT):
    producer.produce(TOPIC, value=str(number), partition=0, on_delivery=delivered)
    producer.poll(0)
producer.flush(30)
assert offsets == list(range(COUNT))

# librdkafka needs a group id even if partitions are assigned manually and nothing is committed.
consumer = Consumer(
    {"bootstrap.servers": BROKERS, "group.id": "unused", "enable.auto.commit": False}
)
consumer.assign([TopicPartition(TOPIC, 0, 0)])
values: list[int] = []
while len(values) < COUNT:
    for message in consumer.consume(1000, timeout=10):
        values.append(int(message.value() or b""))
consumer.close()
assert values == list(range(COUNT))
print(COUNT, "records: once, in order, offsets 0 to", offsets[-1])
