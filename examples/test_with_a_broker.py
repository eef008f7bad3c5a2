"""A test with a real broker: `pip install moldau` installs the pytest fixtures."""

from confluent_kafka import Consumer, Producer

from moldau.testing.broker import Broker


def test_what_was_sent_arrives(moldau_session_broker: Broker, moldau_topic: str) -> None:
    producer = Producer({"bootstrap.servers": moldau_session_broker.bootstrap})
    producer.produce(moldau_topic, value=b"hello")
    assert producer.flush(30) == 0

    consumer = Consumer(
        {
            "bootstrap.servers": moldau_session_broker.bootstrap,
            "group.id": "test",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([moldau_topic])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"
