"""What is sent in a transaction is seen as a whole, or not at all."""

from collections.abc import Callable

import pytest

from moldau import ClientError, Consumer, InvalidArgumentError, Producer
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

NewName = Callable[[str], str]


def committed_texts(broker: Broker, topic: str) -> list[str]:
    """All that a reader of committed messages sees, up to a mark that is sent now."""
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, "mark")
    texts: list[str] = []
    with Consumer(broker.bootstrap) as consumer:
        consumer.subscribe(topic)
        while "mark" not in texts:
            batch = consumer.poll(wait_seconds_max())
            assert batch, f"only {texts} arrived"
            texts += [message.text for message in batch]
    return texts[:-1]


def test_a_block_commits_and_an_error_in_it_aborts(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    with Producer(moldau_session_broker.bootstrap, transactional_id=new_name("tx")) as producer:
        with producer.transaction():
            producer.send(moldau_topic, "a")

        def fail() -> None:
            with producer.transaction():
                producer.send(moldau_topic, "b")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        with producer.transaction():
            producer.send(moldau_topic, "c")
    assert committed_texts(moldau_session_broker, moldau_topic) == ["a", "c"]


def test_offsets_are_committed_with_the_messages_or_not_at_all(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    target, group = new_name("target"), new_name("g")
    with Producer(moldau_session_broker.bootstrap) as producer:
        producer.send_many(moldau_topic, ["1", "2"])
    with (
        Producer(moldau_session_broker.bootstrap, transactional_id=new_name("tx")) as producer,
        Consumer(
            moldau_session_broker.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            max_poll_records=1,
        ) as consumer,
    ):
        consumer.subscribe(moldau_topic)
        (first,) = consumer.poll(wait_seconds_max())
        with producer.transaction() as transaction:
            producer.send(target, first.text * 2)
            transaction.commit_offsets(consumer)
        assert consumer.committed() == {(moldau_topic, 0): 0}
        (second,) = consumer.poll(wait_seconds_max())

        def fail() -> None:
            with producer.transaction() as transaction:
                producer.send(target, second.text * 2)
                transaction.commit_offsets(consumer)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        assert consumer.committed() == {(moldau_topic, 0): 0}
    assert committed_texts(moldau_session_broker, target) == ["11"]


def test_an_older_producer_with_the_same_id_fails_because_it_was_replaced(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    name = new_name("tx")
    old = Producer(moldau_session_broker.bootstrap, transactional_id=name)
    with old.transaction():
        old.send(moldau_topic, "old")
    with Producer(moldau_session_broker.bootstrap, transactional_id=name) as new:
        with new.transaction():
            new.send(moldau_topic, "new")
        with pytest.raises(ClientError) as caught, old.transaction():
            old.send(moldau_topic, "zombie").exception(30)
    assert "transactional_id" in caught.value.hint
    old.close(5)
    assert committed_texts(moldau_session_broker, moldau_topic) == ["old", "new"]


def test_wrong_uses_say_what_to_do(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    with (
        Producer(moldau_session_broker.bootstrap) as producer,
        pytest.raises(InvalidArgumentError, match="no transactional_id"),
    ):
        producer.transaction()
    with Producer(moldau_session_broker.bootstrap, transactional_id=new_name("tx")) as producer:
        with pytest.raises(InvalidArgumentError, match="needs acks="):
            producer.send(moldau_topic, "x", acks=1)
        with producer.transaction():
            producer.send(moldau_topic, "y")
            with pytest.raises(ClientError, match="already open"):
                producer.transaction()
        with pytest.raises(ClientError) as caught:
            producer.send(moldau_topic, "outside")
        assert "with producer.transaction()" in caught.value.hint
