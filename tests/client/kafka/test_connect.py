"""First contact, and the translation of librdkafka's errors."""

import logging
import socket
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.kafka.connect import LinkErrors, connect_producer, probe, translate
from moldau.client.kafka.librdkafka_settings import (
    admin_settings,
    consumer_settings,
    producer_settings,
)

pytestmark = pytest.mark.system


def test_one_reachable_broker_is_enough():
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as server:
        closed.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
        alive = f"127.0.0.1:{server.getsockname()[1]}"
        probe(f"{dead},{alive}")
        with pytest.raises(UnreachableError, match=f"cannot reach {dead} .connection refused."):
            probe(dead)


def test_a_tls_listener_that_closes_on_plain_text_is_not_called_wrong():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def close_both() -> None:
            for _ in range(2):
                server.accept()[0].close()

        closing = threading.Thread(target=close_both)
        closing.start()
        try:
            with pytest.raises(UnreachableError, match="not a Kafka listener without TLS") as told:
                probe(address)
            assert "does it use TLS?" in told.value.hint
            probe(address, extra={"security.protocol": "SASL_SSL"})
        finally:
            closing.join()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, UnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, UnreachableError),
        (KafkaError._TIMED_OUT, TimedOutError),
        (KafkaError._MSG_TIMED_OUT, TimedOutError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFoundError),
        (KafkaError.TOPIC_ALREADY_EXISTS, RejectedError),
        (KafkaError._STATE, ClientError),
    ],
)
def test_errors_are_sorted_by_what_to_do(code, kind):
    error = translate(KafkaException(KafkaError(code)), brokers="b:1", doing="create topic t")
    assert type(error) is kind
    assert "Local:" not in str(error)
    assert "Broker:" not in str(error)


def test_an_error_says_what_was_tried_and_keeps_the_hint():
    error = translate(KafkaError(36, "Topic 't' already exists."), doing="create topic t", hint="h")
    assert str(error) == "cannot create topic t: Topic 't' already exists."
    assert error.hint == "h"


def test_librdkafka_knows_every_setting():
    for acks in ("0", "1", "all"):
        Producer(producer_settings("127.0.0.1:1", acks=acks))
    Consumer(consumer_settings("127.0.0.1:1")).close()
    Consumer(consumer_settings("127.0.0.1:1", group="g", from_beginning=True)).close()
    Producer(admin_settings("127.0.0.1:1"))


def test_what_the_user_sets_wins():
    assert producer_settings("b", extra={"acks": "1"})["acks"] == "1"
    assert consumer_settings("b", extra={"group.id": "x"})["group.id"] == "x"


def test_a_producer_has_asked_for_its_id_when_it_is_connected(moldau_session_broker, moldau_topic):
    """Else its first message waits for half a second: librdkafka's time before it asks again."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger = logging.getLogger("test-connect-producer")
    logger.setLevel(logging.DEBUG)
    handler = Lines()
    logger.addHandler(handler)
    extra = {"debug": "eos", "log_level": "7"}
    settings: dict[str, Any] = {
        **producer_settings(moldau_session_broker.bootstrap, extra=extra),
        "logger": logger,
    }
    try:
        producer, topic = connect_producer(settings, moldau_topic)
        producer.poll(0.1)
    finally:
        logger.removeHandler(handler)
    assert any("Acquiring ProducerId" in line for line in lines), lines
    assert list(topic.partitions) == [0]


def test_an_old_failure_of_a_connection_is_not_taken_for_that_of_a_request():
    link, client = LinkErrors(), Producer({"log_level": 0})
    link(KafkaError(KafkaError._SSL, "handshake failed"))
    # A broker responded.
    link.check(client, "b:1", KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(ClientError, match="cannot connect to b:1: handshake failed"):
        link.check(client, "b:1", timed_out)
    # It is reported one time only.
    link.check(client, "b:1", timed_out)
