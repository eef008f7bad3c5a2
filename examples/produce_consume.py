"""Write with keys and headers, read in a group, commit, and go on after a restart."""

import os
import uuid

from confluent_kafka import Consumer, Producer

BROKERS = os.environ.get("MOLDAU_BROKERS", "localhost:9092")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"

producer = Producer({"bootstrap.servers": BROKERS, "linger.ms": 5, "compression.type": "lz4"})
for number in range(100):
    producer.produce(
        TOPIC,
        key=f"customer-{number % 7}",
        value=f"order {number}",
        headers={"source": "example"},
    )
producer.flush(30)
print("wrote 100 orders to", TOPIC)


def read(count: int) -> list[str]:
    """Read `count` messages as a member of the group, and commit them."""
    consumer = Consumer(
        {
            "bootstrap.servers": BROKERS,
            "group.id": f"{TOPIC}-billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(10)
        if message is None or message.error():
            raise SystemExit(f"nothing to read: {message and message.error()}")
        values.append((message.value() or b"").decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


first, rest = read(40), read(60)
print("read", len(first), "then", len(rest), "more after a restart of the consumer")
assert sorted(first + rest) == sorted(f"order {number}" for number in range(100))
