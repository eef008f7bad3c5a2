"""Three brokers of its own; the leader is killed under load, and every record is there, once."""

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from moldau.testing.cluster import Cluster

TOPIC = "ledger"
COUNT = 3_000

delivered = 0


def count(error: KafkaError | None, message: Message) -> None:
    global delivered
    if error is not None:
        raise SystemExit(f"not delivered: {error}")
    delivered += 1


with Cluster(brokers=3) as cluster:
    # acks=all comes with idempotence: a delivery means that two of three disks have it.
    # log_level: librdkafka would log every lost connection.
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2}
    )
    for number in range(COUNT):
        producer.produce(TOPIC, value=str(number), partition=0, on_delivery=count)
        producer.poll(0)
        if number == COUNT // 2:
            while delivered < COUNT // 4:
                producer.poll(0.01)
            leader = cluster.leader(TOPIC, 0)
            leader.kill()
            print("killed broker", leader.number, "after", delivered, "deliveries")
    assert producer.flush(60) == 0

    leader.start()
    cluster.wait_ready()
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[int] = []
    while len(values) < COUNT:
        for message in consumer.consume(1000, timeout=10):
            values.append(int(message.value() or b""))
    consumer.close()

assert values == list(range(COUNT))
print(delivered, "delivered,", len(values), "there: each once, in order")
