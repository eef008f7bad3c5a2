"""Admin, and AsyncAdmin with it, on a real broker."""

import asyncio
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from moldau import Admin, AsyncAdmin, Producer, QueueClient, RejectedError
from moldau.client.errors import TimedOutError
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def test_a_topic_is_made_once_and_a_second_time_may_be_fine(moldau_session_broker: Broker) -> None:
    admin = Admin(moldau_session_broker.bootstrap)
    assert admin.create_topic("once", exist_ok=True)
    assert not admin.create_topic("once", exist_ok=True)
    with pytest.raises(RejectedError, match="already exists") as caught:
        admin.create_topic("once")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "exist_ok" in caught.value.hint

    async def again() -> bool:
        async with AsyncAdmin(moldau_session_broker.bootstrap) as asynchronous:
            return await asynchronous.create_topic("once", exist_ok=True)

    assert not asyncio.run(again())


def test_the_queue_client_says_the_same_of_a_topic_that_is_there(
    moldau_session_broker: Broker,
) -> None:
    with QueueClient(moldau_session_broker.grpc_address) as client:
        client.create_topic("queue-once")
        with pytest.raises(RejectedError) as caught:
            client.create_topic("queue-once")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "exist_ok" in caught.value.hint


def test_a_message_that_is_too_large_is_refused_with_what_to_change(
    moldau_session_broker: Broker,
) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        sent = producer.send("large", bytes(2_000_000))
        error = sent.exception(30)
    assert isinstance(error, RejectedError)
    assert "max.message.bytes" in error.hint


def test_a_change_without_an_answer_may_be_made_later_and_that_is_said(
    moldau_session_broker: Broker,
) -> None:
    admin = Admin(moldau_session_broker.bootstrap)
    unanswered: Future[None] = Future()
    unanswered.set_exception(KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT)))
    with pytest.raises(
        TimedOutError, match=r"create topic t: .*; the change may still be made"
    ) as caught:
        admin._change(unanswered, "create topic t", look="moldau topic describe t")
    assert caught.value.hint == "check before you retry: moldau topic describe t"
