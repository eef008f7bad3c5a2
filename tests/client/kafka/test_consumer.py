"""A consumer reads, commits what is done, and goes on there."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from moldau import Admin, ClientError, Consumer, InvalidArgumentError, NotFoundError, Producer
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

NewName = Callable[[str], str]


@pytest.fixture
def topic(moldau_session_broker: Broker, moldau_topic: str) -> str:
    """A topic with the messages "0" to "9"."""
    with Producer(moldau_session_broker.bootstrap) as producer:
        producer.send_many(moldau_topic, [str(number) for number in range(10)])
    return moldau_topic


@pytest.fixture
def open_consumer(
    moldau_session_broker: Broker, topic: str, new_name: NewName
) -> Callable[..., Consumer]:
    """Makes members of one group that read the topic."""
    group = new_name("readers")

    def make(**settings: Any) -> Consumer:
        consumer = Consumer(moldau_session_broker.bootstrap, **{"group_id": group, **settings})
        consumer.subscribe([topic])
        return consumer

    return make


def texts(consumer: Consumer, count: int) -> list[str]:
    """Of the next messages, `count` at least."""
    found: list[str] = []
    while len(found) < count:
        batch = consumer.poll(wait_seconds_max())
        assert batch, f"{len(found)} of {count} messages arrived"
        found += [message.text for message in batch]
    return found


OpenConsumer = Callable[..., Consumer]


def test_the_first_poll_waits_for_the_group_and_hands_out_at_most_so_many(
    open_consumer: OpenConsumer,
) -> None:
    with open_consumer(max_poll_records=4) as consumer:
        first = consumer.poll()
        assert first[0].text == "0"
        assert 1 <= len(first) <= 4


def test_a_poll_that_finds_nothing_ends(open_consumer: OpenConsumer) -> None:
    with open_consumer() as consumer:
        assert texts(consumer, 10) == [str(number) for number in range(10)]
        assert consumer.poll(0.05) == []
        assert consumer.poll(0) == []


def test_a_commit_of_a_message_means_done_through_here(
    open_consumer: OpenConsumer, topic: str, moldau_session_broker: Broker
) -> None:
    with open_consumer(enable_auto_commit=False, max_poll_records=1) as consumer:
        for _ in range(3):
            (message,) = consumer.poll(wait_seconds_max())
        consumer.commit(message)
        assert consumer.committed() == {(topic, 0): 2}
        group = str(consumer.config.group_id)
    # In Kafka's own terms: the offset to go on from.
    lags = Admin(moldau_session_broker.bootstrap).group(group).lags
    assert [lag.committed_offset for lag in lags] == [3]
    with open_consumer(enable_auto_commit=False) as consumer:
        assert texts(consumer, 7)[0] == "3"


def test_a_commit_by_partition_means_done_through_here(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer(enable_auto_commit=False) as consumer:
        texts(consumer, 10)
        consumer.commit({(topic, 0): 4})
    with open_consumer(enable_auto_commit=False) as consumer:
        assert texts(consumer, 5)[0] == "5"


def test_a_commit_of_nothing_named_is_of_all_that_was_handed_out(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer(enable_auto_commit=False) as consumer:
        for message in consumer:
            if message.text == "3":
                break
        consumer.commit()
        assert consumer.committed() == {(topic, 0): 3}


def test_what_was_not_committed_comes_again(open_consumer: OpenConsumer) -> None:
    for _ in range(2):
        with open_consumer(enable_auto_commit=False) as consumer:
            assert texts(consumer, 10)[0] == "0"


def test_iteration_commits_by_itself_what_it_handed_out(open_consumer: OpenConsumer) -> None:
    with open_consumer() as consumer:
        for message in consumer:
            if message.text == "5":
                break
    with open_consumer() as consumer:
        assert next(iter(consumer)).text == "6"


def test_poll_after_a_broken_iteration_goes_on_behind_it(open_consumer: OpenConsumer) -> None:
    with open_consumer() as consumer:
        for message in consumer:
            if message.text == "5":
                break
        assert texts(consumer, 4) == ["6", "7", "8", "9"]


def test_a_consumer_that_fails_gets_its_messages_again(open_consumer: OpenConsumer) -> None:
    def fail() -> None:
        with open_consumer(max_poll_records=5) as consumer:
            texts(consumer, 1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with open_consumer() as consumer:
        assert texts(consumer, 10)[0] == "0"


def test_seek_goes_there_and_the_position_follows(open_consumer: OpenConsumer, topic: str) -> None:
    with open_consumer(enable_auto_commit=False) as consumer:
        texts(consumer, 10)
        consumer.seek(topic, 0, 7)
        assert consumer.lag() == {(topic, 0): 3}
        assert texts(consumer, 3) == ["7", "8", "9"]
        consumer.seek(topic, 0, "earliest")
        assert texts(consumer, 10)[0] == "0"
        consumer.seek(topic, 0, "latest")
        assert consumer.lag() == {(topic, 0): 0}
        assert consumer.poll(0.3) == []
        consumer.seek(topic, 0, 6)
        consumer.commit()
        assert consumer.committed() == {(topic, 0): 5}


def test_a_paused_partition_returns_nothing_even_in_the_middle_of_a_batch(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer() as consumer:
        for message in consumer:
            if message.text == "2":
                break
        consumer.pause([(topic, 0)])
        assert consumer.poll(0.3) == []
        assert consumer.lag() == {(topic, 0): 7}
        consumer.resume([(topic, 0)])
        assert texts(consumer, 7) == [str(number) for number in range(3, 10)]


def test_lag_counts_what_is_not_handed_out(
    open_consumer: OpenConsumer, topic: str, moldau_session_broker: Broker
) -> None:
    with open_consumer(max_poll_records=1) as consumer:
        consumer.poll(wait_seconds_max())
        assert consumer.lag() == {(topic, 0): 9}
        texts(consumer, 9)
        assert consumer.lag() == {(topic, 0): 0}
        with Producer(moldau_session_broker.bootstrap) as producer:
            producer.send(topic, "more")
        assert consumer.lag() == {(topic, 0): 1}


def test_partitions_are_reported_when_they_come_and_go(
    moldau_session_broker: Broker, topic: str, new_name: NewName
) -> None:
    told: list[tuple[str, list[tuple[str, int]]]] = []
    consumer = Consumer(
        moldau_session_broker.bootstrap, group_id=new_name("g"), enable_auto_commit=False
    )

    def leave(partitions: list[tuple[str, int]]) -> None:
        consumer.commit()
        told.append(("left", partitions))

    consumer.subscribe(
        topic, on_assign=lambda partitions: told.append(("came", partitions)), on_revoke=leave
    )
    texts(consumer, 10)
    assert consumer.assignment() == [(topic, 0)]
    consumer.close()
    assert told == [("came", [(topic, 0)]), ("left", [(topic, 0)])]
    with Consumer(moldau_session_broker.bootstrap, group_id=consumer.config.group_id) as again:
        again.subscribe(topic)

        def is_assigned() -> bool:
            assert again.poll(0.1) == []
            return bool(again.assignment())

        wait_until(is_assigned, "the next member has its partition")
        assert again.poll(2) == []


def test_without_a_group_everything_is_read_and_nothing_committed(
    moldau_session_broker: Broker, topic: str
) -> None:
    for _ in range(2):
        with Consumer(moldau_session_broker.bootstrap) as consumer:
            consumer.subscribe(topic)
            assert texts(consumer, 10)[0] == "0"
            with pytest.raises(InvalidArgumentError, match="without a group") as caught:
                consumer.commit()
            assert "group_id" in caught.value.hint
    with Consumer(moldau_session_broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        assert texts(consumer, 10)[0] == "0"


def test_a_topic_that_is_not_there_is_said(
    moldau_session_broker: Broker, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    missing = new_name("missing")
    with (
        Consumer(moldau_session_broker.bootstrap) as consumer,
        pytest.raises(NotFoundError, match=missing) as caught,
    ):
        consumer.subscribe(missing)
    assert f"moldau topic create {missing}" in caught.value.hint
    # A member of a group may come before its topic: it is told once, and goes on.
    with Consumer(moldau_session_broker.bootstrap, group_id=new_name("g")) as member:
        member.subscribe(missing)

        def is_told() -> bool:
            assert member.poll(0.1) == []
            return "retrying in the background" in caplog.text

        wait_until(is_told, "it is said that the topic is not there")
        with Producer(moldau_session_broker.bootstrap) as producer:
            producer.send(missing, "at last")
        assert texts(member, 1) == ["at last"]


def test_auto_offset_reset_none_raises_with_what_to_do(open_consumer: OpenConsumer) -> None:
    with open_consumer(auto_offset_reset="none") as consumer:
        with pytest.raises(ClientError) as caught:
            consumer.poll(wait_seconds_max())
        assert "auto_offset_reset" in caught.value.hint


def test_what_is_not_assigned_cannot_be_paused_or_sought(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer() as consumer:
        texts(consumer, 1)
        for call in (
            lambda: consumer.pause([(topic, 1)]),
            lambda: consumer.resume([("other", 0)]),
            lambda: consumer.seek(topic, 9, 0),
        ):
            with pytest.raises(InvalidArgumentError, match="is not assigned to this consumer"):
                call()
        for offset in (-1, "middle", True):
            with pytest.raises(InvalidArgumentError, match="invalid offset"):
                consumer.seek(topic, 0, offset)
        with pytest.raises(InvalidArgumentError, match="invalid offset"):
            consumer.commit({(topic, 0): -1})


def test_what_cannot_be_meant_is_refused_with_what_to_write(
    open_consumer: OpenConsumer, moldau_session_broker: Broker
) -> None:
    with open_consumer() as consumer:
        for call in (
            lambda: consumer.subscribe(5),  # type: ignore[arg-type]
            lambda: consumer.subscribe([]),
            lambda: consumer.subscribe(["a", 5]),  # type: ignore[list-item]
            lambda: consumer.assign(["orders"]),  # type: ignore[list-item]
            lambda: consumer.assign([("orders", "0")]),  # type: ignore[list-item]
            lambda: consumer.pause("orders"),  # type: ignore[arg-type]
            lambda: consumer.resume([("orders", -1)]),
            lambda: consumer.commit(5),  # type: ignore[arg-type]
            lambda: consumer.commit({"orders": 5}),  # type: ignore[dict-item]
            lambda: consumer.commit({("orders", 0): 2**70}),
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                call()
            assert caught.value.hint
    with Consumer(moldau_session_broker.bootstrap, group_id="g") as consumer:
        for read in (consumer.poll, lambda: next(iter(consumer))):
            with pytest.raises(ClientError, match="no subscription") as told:
                read()
            assert "subscribe" in told.value.hint


def test_a_repr_says_where_it_reads_and_for_whom(
    open_consumer: OpenConsumer, moldau_session_broker: Broker
) -> None:
    at = moldau_session_broker.bootstrap
    with Consumer(at) as alone:
        assert repr(alone) == f"<Consumer at {at}, no group>"
    consumer = open_consumer()
    assert repr(consumer) == f"<Consumer at {at}, group {consumer.config.group_id}>"
    consumer.close()
    assert repr(consumer).endswith(", closed>")


@pytest.mark.safety
def test_a_closed_consumer_refuses_and_may_be_closed_twice(open_consumer: OpenConsumer) -> None:
    consumer = open_consumer()
    consumer.close()
    consumer.close()
    with pytest.raises(ClientError, match="the consumer is closed"):
        consumer.poll()
    assert list(consumer) == []


def test_a_handler_of_a_signal_may_close_and_the_loop_ends(open_consumer: OpenConsumer) -> None:
    def iterate(consumer: Consumer) -> None:
        assert list(consumer) == []

    def poll(consumer: Consumer) -> None:
        # It has no other way to say that there will be nothing any more.
        with pytest.raises(ClientError, match="the consumer is closed"):
            consumer.poll(wait_seconds_max())

    for read in (iterate, poll):
        consumer = open_consumer(enable_auto_commit=False)
        assert len(texts(consumer, 10)) == 10
        before = signal.signal(signal.SIGALRM, lambda *_, one=consumer: one.close())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            read(consumer)
        finally:
            signal.signal(signal.SIGALRM, before)


def test_a_commit_beyond_what_was_returned_is_refused(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer(enable_auto_commit=False, max_poll_records=2) as consumer:
        first, second = consumer.poll(wait_seconds_max())
        with pytest.raises(InvalidArgumentError, match="returned through offset 1") as caught:
            consumer.commit({(topic, 0): 2})
        assert "poll" in caught.value.hint
        consumer.commit(second)
        # Also after it has gone back: it was returned before.
        consumer.seek(topic, 0, 0)
        assert consumer.poll(wait_seconds_max())[0].offset == 0
        consumer.seek(topic, 0, 0)
        consumer.commit(second)
        assert consumer.committed() == {(topic, 0): 1}
        consumer.commit(first)


def test_the_bound_of_commits_follows_a_seek(open_consumer: OpenConsumer, topic: str) -> None:
    with open_consumer(enable_auto_commit=False, max_poll_records=2) as consumer:
        consumer.poll(wait_seconds_max())
        consumer.seek(topic, 0, 6)
        with pytest.raises(InvalidArgumentError, match="returned through offset 5"):
            consumer.commit({(topic, 0): 6})
        # Messages before it were skipped on purpose.
        consumer.commit({(topic, 0): 5})
        assert [message.offset for message in consumer.poll(wait_seconds_max())] == [6, 7]
        with pytest.raises(InvalidArgumentError, match="returned through offset 7"):
            consumer.commit({(topic, 0): 8})
        consumer.commit({(topic, 0): 7})
        assert consumer.committed() == {(topic, 0): 7}


def test_messages_that_a_pause_drops_were_not_returned(
    open_consumer: OpenConsumer, topic: str
) -> None:
    with open_consumer(enable_auto_commit=False) as consumer:
        assert next(iter(consumer)).offset == 0
        consumer.pause([(topic, 0)])
        with pytest.raises(InvalidArgumentError, match="returned through offset 0"):
            consumer.commit({(topic, 0): 5})


def test_a_commit_without_having_read_is_refused_beyond_the_end(
    moldau_session_broker: Broker, topic: str, new_name: NewName
) -> None:
    with Consumer(moldau_session_broker.bootstrap, group_id=new_name("writer")) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidArgumentError, match="returned through offset 9"):
            consumer.commit({(topic, 0): 10})
        consumer.commit({(topic, 0): 9})
