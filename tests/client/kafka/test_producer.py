"""A producer sends, waits, and says what became of each message."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from moldau import (
    AckMode,
    BufferFullError,
    ClientError,
    Consumer,
    DeliveryFailedError,
    InvalidArgumentError,
    Message,
    Producer,
    ProducerConfig,
    TimedOutError,
    UnreachableError,
)
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def pausable_broker() -> Iterator[Broker]:
    """A broker that tests of this module may pause, which the shared one must not be."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def own_topic(new_name: Callable[[str], str]) -> str:
    """A name for a topic that the first message creates."""
    return new_name("own")


def read(broker: Broker, topic: str, count: int) -> list[Message]:
    """The first `count` messages of a topic."""
    messages: list[Message] = []
    with Consumer(broker.bootstrap) as consumer:
        consumer.subscribe(topic)
        while len(messages) < count:
            batch = consumer.poll(wait_seconds_max())
            assert batch, f"{len(messages)} of {count} messages arrived"
            messages += batch
    return messages


def connect(producer: Producer, topic: str) -> None:
    """Send until one message has arrived: on a busy machine a short timeout may be too short."""
    wait_until(
        lambda: producer.send(topic, "first").exception(wait_seconds_max()) is None,
        "a message has arrived",
    )


def test_a_result_says_where_the_message_is(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    with Producer(moldau_session_broker.bootstrap, linger_ms=0) as producer:
        first = producer.send(moldau_topic, "a", timestamp=1_700_000_000_000)
        second = producer.send(moldau_topic, "b")
        assert first.result(wait_seconds_max()) == (moldau_topic, 0, 0, 1_700_000_000_000)
        assert second.result(wait_seconds_max()).offset == 1
        assert first.done()
        assert first.exception() is None


def test_bytes_text_json_and_nothing_arrive_as_they_were_sent(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    when = datetime(2024, 5, 1, tzinfo=UTC)
    with Producer(moldau_session_broker.bootstrap) as producer:
        producer.send(moldau_topic, b"\xff", key=b"k")
        producer.send(moldau_topic, "Vltava ž", key="key", headers={"a": "1", "b": None})
        producer.send(moldau_topic, {"n": [1, "ř"]}, timestamp=when)
        producer.send(moldau_topic, value=None, key="gone", partition=0)
    raw, text, document, nothing = read(moldau_session_broker, moldau_topic, 4)
    assert (raw.key, raw.value) == (b"k", b"\xff")
    assert (text.key, text.text) == (b"key", "Vltava ž")
    assert text.headers == [("a", b"1"), ("b", None)]
    assert document.json() == {"n": [1, "ř"]}
    assert document.time == when
    assert (nothing.key, nothing.value) == (b"gone", None)


def test_acks_are_chosen_per_message_each_level_with_a_handle_of_its_own(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        assert producer.send(moldau_topic, "all").result(wait_seconds_max()).offset == 0
        assert list(producer._outboxes) == [AckMode.ALL]
        assert producer.send(moldau_topic, "leader", acks=1).result(wait_seconds_max()).offset == 1
        # Nobody answers, so nobody can say at which offset it is.
        assert (
            producer.send(moldau_topic, "none", acks="none").result(wait_seconds_max()).offset == -1
        )
        assert (
            producer.send(moldau_topic, "again", acks=AckMode.LEADER)
            .result(wait_seconds_max())
            .offset
            >= 2
        )
        assert set(producer._outboxes) == set(AckMode)
    texts = [message.text for message in read(moldau_session_broker, moldau_topic, 4)]
    assert sorted(texts) == ["again", "all", "leader", "none"]


def test_many_are_sent_in_order_with_and_without_keys(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        sent = producer.send_many(moldau_topic, ["a", ("k", {"b": 1}), b"c"])
        assert [delivery.result(wait_seconds_max()).offset for delivery in sent] == [0, 1, 2]
    keys = [message.key for message in read(moldau_session_broker, moldau_topic, 3)]
    assert keys == [None, b"k", None]


def test_a_callback_runs_without_polls_or_waits(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    called = threading.Event()
    with Producer(moldau_session_broker.bootstrap) as producer:
        delivery = producer.send(moldau_topic, "x")
        delivery.add_done_callback(lambda _: called.set())
        assert called.wait(wait_seconds_max())
        late: list[object] = []
        delivery.add_done_callback(late.append)
        assert late == [delivery]


def test_a_callback_that_fails_harms_no_other(
    moldau_session_broker: Broker, moldau_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []
    with Producer(moldau_session_broker.bootstrap) as producer:
        delivery = producer.send(moldau_topic, "x")
        delivery.add_done_callback(lambda _: 1 / 0)
        delivery.add_done_callback(called.append)
        producer.flush(wait_seconds_max())
        # Whoever settled it may still be calling.
        delivery.add_done_callback(called.append)
    assert called == [delivery, delivery]
    assert "delivery callback failed" in caplog.text
    # A record of the log keeps what its error came through, the producer too.
    caplog.clear()


def test_threads_share_a_producer(moldau_session_broker: Broker, moldau_topic: str) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:

        def work(name: int) -> None:
            for number in range(200):
                producer.send(moldau_topic, f"{name} {number}")

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    texts = [message.text for message in read(moldau_session_broker, moldau_topic, 800)]
    for name in range(4):
        mine = [text for text in texts if text.startswith(f"{name} ")]
        assert mine == [f"{name} {number}" for number in range(200)]


def send_patiently(producer: Producer, topic: str, value: str) -> None:
    """The machine may be busier than max_block_ms allows for."""
    wait_until(
        lambda: producer.send(topic, value), "there is room for it", ignoring=BufferFullError
    )


@pytest.mark.safety
def test_a_full_buffer_blocks_and_then_says_so(pausable_broker: Broker, own_topic: str) -> None:
    with Producer(pausable_broker.bootstrap, buffer_messages=50, max_block_ms=200) as producer:
        connect(producer, own_topic)
        pausable_broker.pause()
        try:
            producer.send_many(own_topic, ["x"] * 50)
            with pytest.raises(BufferFullError, match="buffer is full; 50 messages") as caught:
                producer.send(own_topic, "too much")
            assert "max_block_ms" in caught.value.hint
            with pytest.raises(TimedOutError, match="50 messages are not acknowledged"):
                producer.flush(0.1)
        finally:
            pausable_broker.resume()
        # There is room again once the broker answers: backpressure, not an end.
        for _ in range(120):
            send_patiently(producer, own_topic, "y")
        producer.flush(wait_seconds_max())
    assert len(read(pausable_broker, own_topic, 171)) == 171


def test_failures_that_were_not_looked_at_are_raised_by_flush_and_close(
    pausable_broker: Broker,
    own_topic: str,
) -> None:
    producer = Producer(pausable_broker.bootstrap, delivery_timeout_ms=300)
    connect(producer, own_topic)
    pausable_broker.pause()
    try:
        looked_at = producer.send(own_topic, "a")
        with pytest.raises(TimedOutError) as caught:
            looked_at.result(wait_seconds_max())
        assert "cannot send to " in str(caught.value)
        producer.flush(wait_seconds_max())
        producer.send(own_topic, "b")
        with pytest.raises(DeliveryFailedError, match="1 messages failed") as failed:
            producer.flush(wait_seconds_max())
        assert len(failed.value.errors) == 1
        producer.send(own_topic, "c")
        with pytest.raises(DeliveryFailedError):
            producer.close(wait_seconds_max())
    finally:
        pausable_broker.resume()


def test_close_says_what_it_gave_up_and_those_deliveries_fail(
    pausable_broker: Broker, own_topic: str
) -> None:
    producer = Producer(pausable_broker.bootstrap)
    connect(producer, own_topic)
    pausable_broker.pause()
    try:
        given_up = producer.send(own_topic, "late")
        with pytest.raises(TimedOutError, match="1 messages were given up"):
            producer.close(0.2)
        assert "closed too early" in str(given_up.exception(0).hint)  # type: ignore[union-attr]
    finally:
        pausable_broker.resume()


def test_an_error_in_the_with_block_is_not_hidden_by_that_of_close(
    pausable_broker: Broker, own_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(pausable_broker.bootstrap, delivery_timeout_ms=300)
    connect(producer, own_topic)
    pausable_broker.pause()

    def fail() -> None:
        with producer:
            producer.send(own_topic, "x")
            raise KeyError("mine")

    try:
        with pytest.raises(KeyError, match="mine"):
            fail()
    finally:
        pausable_broker.resume()
    assert "1 messages failed" in caplog.text


UNCLOSED = """
import os, signal, sys
from moldau import DeliveryFailedError, Producer
from moldau.testing.waiting import wait_seconds_max
timeout_ms = int(sys.argv[3])
producer = Producer(sys.argv[1], delivery_timeout_ms=timeout_ms, linger_ms=timeout_ms // 2)
while True:
    producer.send(sys.argv[4], "first")
    try:
        producer.flush(wait_seconds_max())
    except DeliveryFailedError:
        continue
    break
if sys.argv[2] != "0":
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
producer.send(sys.argv[4], "last")
"""


def run_unclosed(broker: Broker, topic: str, *, stop: bool, timeout_ms: int) -> str:
    arguments = [broker.bootstrap, str(broker.pid if stop else 0), str(timeout_ms), topic]
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", UNCLOSED, *arguments],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.safety
def test_the_end_of_a_program_sends_what_an_unclosed_producer_has_and_warns(
    pausable_broker: Broker,
    own_topic: str,
) -> None:
    said = run_unclosed(pausable_broker, own_topic, stop=False, timeout_ms=60_000)
    assert "with 1 pending messages was not closed" in said
    assert "lost" not in said
    texts = [message.text for message in read(pausable_broker, own_topic, 2)]
    assert texts == ["first", "last"]


@pytest.mark.safety
def test_no_message_is_lost_at_the_end_of_a_program_without_a_word(
    pausable_broker: Broker, own_topic: str
) -> None:
    try:
        said = run_unclosed(pausable_broker, own_topic, stop=True, timeout_ms=300)
    finally:
        pausable_broker.resume()
    assert "lost 1 messages" in said


def test_a_dropped_producer_sends_what_it_has(
    moldau_session_broker: Broker, moldau_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(moldau_session_broker.bootstrap, linger_ms=60_000)
    producer.send(moldau_topic, "x")
    with caplog.at_level(logging.ERROR), pytest.warns(ResourceWarning, match="was not closed"):
        del producer
    assert caplog.text == ""
    assert read(moldau_session_broker, moldau_topic, 1)[0].text == "x"


@pytest.mark.safety
def test_a_closed_producer_refuses_and_may_be_closed_twice(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    producer = Producer(moldau_session_broker.bootstrap)
    producer.send(moldau_topic, "x")
    producer.close()
    producer.close()
    for call in (lambda: producer.send(moldau_topic, "y"), producer.flush, producer.start):
        with pytest.raises(ClientError, match="the producer is closed"):
            call()


def test_an_unreachable_cluster_is_reported_at_once_and_with_what_to_do() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match=f"cannot reach 127.0.0.1:{port}") as caught:
        Producer(f"127.0.0.1:{port}")
    assert "moldau dev" in caught.value.hint


def test_a_message_that_is_too_large_is_refused(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    with Producer(moldau_session_broker.bootstrap, compression_type="none") as producer:
        delivery = producer.send(moldau_topic, b"x" * 3_000_000)
        with pytest.raises(ClientError, match=f"cannot send to {moldau_topic}"):
            delivery.result(wait_seconds_max())
        assert producer.send(moldau_topic, "small").result(wait_seconds_max()).offset == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"value": 5}, "type int"),
        ({"value": {"x": {1, 2}}}, "JSON"),
        ({"value": [float("nan")]}, "JSON"),
        ({"value": "x", "key": 7}, "key of type int"),
        ({"value": "x", "acks": 2}, "acks must be 0, 1 or"),
        ({"value": "x", "partition": -1}, "invalid partition"),
        ({"value": "x", "timestamp": -5}, "invalid timestamp"),
        ({"value": "x", "headers": {"h": 5}}, "header h"),
        ({"value": "x", "headers": ["h"]}, "invalid header"),
        ({"value": "\ud800"}, "surrogates"),
        ({"value": "x", "key": "\ud800"}, "surrogates"),
        ({"value": "x", "topic": ""}, "invalid topic name ''"),
        ({"value": "x", "topic": "a b!"}, "invalid topic name 'a b!'"),
        ({"value": "x", "topic": None}, "the topic must be a string, not None"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_hint(
    wrong: dict[str, object], said: str, moldau_session_broker: Broker
) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        with pytest.raises(InvalidArgumentError, match=said) as caught:
            producer.send(**{"topic": "refused", **wrong})  # type: ignore[arg-type]
        assert caught.value.hint
        assert len(producer) == 0


def test_settings_are_given_as_a_config_or_by_name_but_not_both() -> None:
    with pytest.raises(InvalidArgumentError, match="both a ProducerConfig and settings"):
        Producer(ProducerConfig(), linger_ms=1)
    with pytest.raises(InvalidArgumentError, match="linger_mss") as caught:
        Producer(linger_mss=1)  # type: ignore[call-arg]
    assert "linger_ms" in caught.value.hint


def test_send_many_takes_values_and_pairs_and_nothing_else(moldau_session_broker: Broker) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        for wrong in ("abc", b"abc", {"a": 1}, [("a", "b", "c")]):
            with pytest.raises(InvalidArgumentError, match=r"send_many|a tuple of 3") as caught:
                producer.send_many("refused", wrong)  # type: ignore[arg-type]
            assert caught.value.hint
        assert len(producer) == 0


@pytest.mark.safety
def test_a_repr_says_where_it_sends_and_what_is_open(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    at = moldau_session_broker.bootstrap
    with Producer(at, linger_ms=60_000) as producer:
        assert repr(producer) == f"<Producer at {at}, 0 messages not acknowledged>"
        delivery = producer.send(moldau_topic, "x")
        assert repr(delivery) == "<Delivery pending>"
        assert repr(producer) == f"<Producer at {at}, 1 messages not acknowledged>"
        producer.flush(wait_seconds_max())
        assert f"Receipt(topic='{moldau_topic}'" in repr(delivery)
    assert repr(producer) == f"<Producer at {at}, closed>"


INTERRUPTED = """
import os, signal, sys
from moldau import Producer
from moldau.testing.waiting import wait_seconds_max
with Producer(sys.argv[1]) as producer:
    producer.send(sys.argv[3], "first").result(wait_seconds_max())
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    delivery = producer.send(sys.argv[3], "last")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    delivery.result()
"""


@pytest.mark.safety
def test_ctrl_c_ends_a_program_that_waits_and_says_what_is_lost(
    pausable_broker: Broker, own_topic: str
) -> None:
    short = "from moldau.client.kafka import producer as p; p._EXIT_SECONDS_MAX = 0.5"
    arguments = [pausable_broker.bootstrap, str(pausable_broker.pid), own_topic]
    try:
        # Within the test's time, not after the two minutes that a message may take.
        done = subprocess.run(
            [sys.executable, "-c", short + INTERRUPTED, *arguments],
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
        )
    finally:
        pausable_broker.resume()
    assert "KeyboardInterrupt" in done.stderr
    assert "1 messages were given up" in done.stderr
