"""The queue client and a real broker: both kinds of groups, dead letters and their way back."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from moldau import (
    Consumer,
    LeaseLostError,
    NotFoundError,
    Outgoing,
    Producer,
    QueueClient,
    QueueMessage,
    RejectedError,
    SendFailedError,
    Worker,
)
from moldau.client.queue.message import StoredMessage
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

_numbers = itertools.count(1)


@pytest.fixture
def client(moldau_session_broker: Broker) -> Iterator[QueueClient]:
    with QueueClient(moldau_session_broker.grpc_address) as made:
        yield made


@pytest.fixture
def topic(client: QueueClient) -> str:
    name = f"queue-{next(_numbers)}"
    client.create_topic(name, partitions=2)
    return name


@pytest.mark.safety
def test_every_message_is_done_once_by_many_workers(client: QueueClient, topic: str) -> None:
    client.send_many(topic, [f"{number}" for number in range(500)])
    seen: list[str] = []
    lock = threading.Lock()

    def handle(message: QueueMessage) -> None:
        with lock:
            seen.append(message.text)

    threads = [
        threading.Thread(
            target=client.work,
            args=(f"{topic}.g", topic, handle),
            kwargs={"concurrency": 8, "idle": 3.0},
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(wait_seconds_max())
    assert sorted(seen, key=int) == [f"{number}" for number in range(500)]
    stats = client.stats(f"{topic}.g")
    assert (stats.ready, stats.leased, stats.delayed) == (0, 0, 0)


def test_a_poison_message_becomes_a_dead_letter_and_comes_back(
    client: QueueClient, topic: str
) -> None:
    group = f"{topic}.g"
    client.send_many(topic, ["good", Outgoing("bad", key="k", headers={"h": "v"})])
    worker = client.connect(group, topic, attempts=2, backoff=0.1)

    def is_done() -> bool:
        stats = client.stats(group)
        if any(each.floor == each.end for each in stats.partitions) and not (
            stats.ready + stats.leased + stats.delayed
        ):
            return True
        for message in worker.poll(wait=0.2):
            if message.text == "bad":
                message.nack(delay=0, reason="it is bad")
            else:
                message.ack()
        return False

    wait_until(is_done, "both messages are done with")
    worker.close()
    (dead,) = _read(client, f"{group}.dead", 1)
    headers = dict(dead.headers)
    assert (dead.text, dead.key) == ("bad", b"k")
    assert headers["moldau-dead-reason"] == b"it is bad"
    assert headers["moldau-dead-attempts"] == b"2"
    assert (headers["moldau-dead-topic"], headers["h"]) == (topic.encode(), b"v")

    assert list(client.redrive(group, idle=0.5))[-1] == (1, 0, 0)
    (back,) = client.connect(group, topic).poll(wait=wait_seconds_max())
    names = ["h", "moldau-earlier-death", "moldau-only-group"]
    assert ([name for name, _ in back.headers], back.attempt) == (names, 1)
    assert (back.text, back.key, dict(back.headers)["h"]) == ("bad", b"k", b"v")
    assert dict(back.headers)["moldau-only-group"] == group.encode()
    # One that dies again can be sent back again.
    back.nack(delay=0, reason="still bad")
    (again,) = client.connect(group, topic).poll(wait=wait_seconds_max())
    again.nack(delay=0, reason="still bad")
    assert len(_read(client, f"{group}.dead", 2)) == 2
    assert list(client.redrive(group, idle=0.5))[-1] == (1, 0, 0)
    (back,) = client.connect(group, topic).poll(wait=wait_seconds_max())
    assert back.text == "bad"
    deaths = [value or b"" for name, value in back.headers if name == "moldau-earlier-death"]
    assert [death.partition(b" attempts=")[2] for death in deaths] == [
        f"2 topic={topic} reason={reason}".encode() for reason in ("it is bad", "still bad")
    ]
    back.ack()
    assert list(client.redrive(group, idle=0.5)) == []


@pytest.mark.safety
def test_redrive_drops_doubles_and_skips_letters_of_other_groups(
    client: QueueClient, topic: str
) -> None:
    dead, group = f"{topic}.dead", f"{topic}.g"
    client.create_topic(dead, partitions=1)
    client.connect(group, topic).close()
    origin = {
        "moldau-dead-group": group,
        "moldau-dead-topic": topic,
        "moldau-dead-partition": "0",
        "moldau-dead-offset": "7",
    }
    other = {**origin, "moldau-dead-offset": "8"}
    stranger = {**origin, "moldau-dead-group": "another"}
    cut = {**origin, "moldau-dead-offset": "9", "moldau-dead-truncated": "value"}
    letters: list[dict[str, str]] = [origin, other, origin, stranger, {}, cut]
    client.send_many(dead, [Outgoing("x", headers=headers) for headers in letters])
    *_, sums = client.redrive(group, topic=dead, idle=0.5)
    assert sums == (2, 1, 3)
    found = [m for n in (0, 1) for m in client.read_from(topic, n)]
    died = ("moldau-earlier-death", f"at= attempts= topic={topic} reason=".encode())
    only = [died, ("moldau-only-group", group.encode())]
    assert [(message.text, message.headers) for message in found] == [("x", only), ("x", only)]


def test_a_made_up_dead_letter_is_sent_to_no_topic_that_its_group_does_not_have(
    client: QueueClient, topic: str
) -> None:
    """Who may write to the dead-letter topic would have the rights of who redrives."""
    group, dead, victim = f"{topic}.g", f"{topic}.g.dead", f"{topic}.victim"
    client.connect(group, topic).close()
    for name in (dead, victim):
        client.create_topic(name, partitions=1)
    letters = [
        Outgoing(
            "x",
            headers={
                "moldau-dead-group": group,
                "moldau-dead-topic": where,
                "moldau-dead-offset": str(number),
            },
        )
        for number, where in enumerate((victim, topic, "__consumer_offsets"))
    ]
    client.send_many(dead, letters)
    *_, sums = client.redrive(group, idle=0.5)
    assert sums == (1, 0, 2)
    assert list(client.read_from(victim)) == []


def test_dead_letters_of_a_deleted_group_go_only_where_one_says(
    client: QueueClient, topic: str
) -> None:
    """Nobody knows its topics, and headers can be made up."""
    group, dead, victim = f"{topic}.g", f"{topic}.g.dead", f"{topic}.victim"
    for name in (dead, victim):
        client.create_topic(name, partitions=1)
    headers = {"moldau-dead-group": group, "moldau-dead-topic": victim}
    client.send(dead, "x", headers=headers)
    with pytest.raises(NotFoundError, match="its topics are unknown") as raised:
        list(client.redrive(group, idle=0.5))
    assert "to=" in raised.value.hint
    assert list(client.read_from(victim)) == []
    *_, sums = client.redrive(group, idle=0.5, to=topic)
    assert sums == (1, 0, 0)
    assert [m.text for n in (0, 1) for m in client.read_from(topic, n)] == ["x"]
    assert list(client.read_from(victim)) == []


def test_a_group_without_dead_letters_has_nothing_to_redrive(
    client: QueueClient, topic: str
) -> None:
    client.connect(f"{topic}.g", topic).close()
    assert list(client.redrive(f"{topic}.g")) == []


def test_redrive_of_what_is_not_there_is_not_found(client: QueueClient) -> None:
    with pytest.raises(NotFoundError, match="no queue group nobody") as raised:
        list(client.redrive("nobody"))
    assert "topic=" in raised.value.hint


def test_a_delayed_message_waits(client: QueueClient, topic: str) -> None:
    worker = client.connect(f"{topic}.g", topic)
    began = time.monotonic()
    client.send(topic, "later", delay=1.0)
    (message,) = worker.poll(wait=wait_seconds_max())
    assert message.text == "later"
    # The two clocks are the same machine's; a little is lost to rounding.
    assert time.monotonic() - began >= 0.9


@pytest.mark.safety
def test_a_lease_that_ended_is_lost(client: QueueClient, topic: str) -> None:
    client.send(topic, "x")
    worker = client.connect(f"{topic}.g", topic, visibility=1.5, backoff=0.1)
    (message,) = worker.poll(wait=wait_seconds_max())
    (again,) = worker.poll(wait=wait_seconds_max(), visibility=60)
    assert again.attempt == 2
    with pytest.raises(LeaseLostError):
        message.ack()
    again.extend(60)
    again.ack()
    again.ack()


@pytest.mark.safety
def test_an_ordered_group_repeats_until_it_is_acked(client: QueueClient, topic: str) -> None:
    client.send_many(topic, [Outgoing(f"{number}", partition=0) for number in range(10)])
    with client.connect(f"{topic}.o", topic, mode="ordered") as worker:
        assert worker.mode == "ordered"
        first = _poll(worker, 3)
        assert [message.text for message in first] == ["0", "1", "2"]
        assert [message.text for message in _poll(worker, 3)] == ["0", "1", "2"]
        assert worker.ack(first[1]) == []
        assert [message.text for message in _poll(worker, 3)] == ["2", "3", "4"]
    with client.connect(f"{topic}.o", topic, mode="ordered") as worker:
        done: list[str] = []
        while len(done) < 8:
            messages = _poll(worker, 100)
            done += [message.text for message in messages]
            assert worker.ack(messages) == []
    assert done == [f"{number}" for number in range(2, 10)]


def test_ordered_work_stops_at_what_fails_and_goes_on_from_there(
    client: QueueClient, topic: str
) -> None:
    client.send_many(topic, [Outgoing(f"{number}", partition=0) for number in range(5)])
    seen: list[str] = []

    def handle(message: QueueMessage) -> None:
        seen.append(message.text)
        if message.text == "2" and seen.count("2") == 1:
            raise ValueError("once")

    client.work(f"{topic}.o", topic, handle, mode="ordered", idle=2.0)
    assert seen == ["0", "1", "2", "2", "3", "4"]


def test_partitions_of_an_ordered_group_move_to_a_second_worker(
    client: QueueClient, topic: str
) -> None:
    one = client.connect(f"{topic}.o", topic, mode="ordered")
    assert len(one.assignment()) == 2
    two = client.connect(f"{topic}.o", topic, mode="ordered")

    def is_shared() -> bool:
        one.poll(wait=0.1)
        two.poll(wait=0.1)
        return len(one.assignment()) == len(two.assignment()) == 1

    wait_until(is_shared, "each has a partition")
    assert {*one.assignment(), *two.assignment()} == {(topic, 0), (topic, 1)}


def test_a_group_has_one_mode(client: QueueClient, topic: str) -> None:
    client.connect(f"{topic}.g", topic)
    with pytest.raises(RejectedError):
        client.connect(f"{topic}.g", topic, mode="ordered")


def test_kafka_and_a_queue_share_a_topic(
    client: QueueClient, topic: str, moldau_session_broker: Broker
) -> None:
    with Producer(moldau_session_broker.bootstrap) as producer:
        producer.send(topic, {"id": 1}, key="k", headers={"h": "v"})
    client.send(topic, {"id": 2}, key="k")
    worker = client.connect(f"{topic}.g", topic)
    polled: list[QueueMessage] = []
    while len(polled) < 2:
        polled += worker.poll(wait=wait_seconds_max())
    worker.ack(polled)
    with Consumer(moldau_session_broker.bootstrap, group_id=f"{topic}.kafka") as consumer:
        consumer.subscribe(topic)
        read = list(itertools.islice(consumer, 2))
    for messages in (read, polled):
        found = sorted((message.json()["id"], message.key, message.headers) for message in messages)
        assert found == [(1, b"k", [("h", b"v")]), (2, b"k", [])]


def test_the_topology_is_learnt_over_http(moldau_session_broker: Broker, topic: str) -> None:
    with QueueClient(f"http://{moldau_session_broker.http_address}") as client:
        assert client.send(topic, "x").offset == 0
        view = client._asynchronous._rpc.view
        assert view.alive_addresses == [moldau_session_broker.grpc_address]


def _poll(worker: Worker, count: int) -> list[QueueMessage]:
    return wait_until(lambda: worker.poll(count, wait=1), "there are messages")


def _read(client: QueueClient, topic: str, count: int) -> list[StoredMessage]:
    def read() -> list[StoredMessage] | None:
        found = list(client.read_from(topic))
        return found if len(found) >= count else None

    found = wait_until(read, f"{count} messages are in {topic}", ignoring=NotFoundError)
    assert found is not None
    return found


@pytest.mark.parametrize("size", [2_000_000, 6_200_000, 7_000_000])
def test_a_message_that_is_too_large_takes_no_other_with_it(
    client: QueueClient, topic: str, size: int
) -> None:
    messages = [b"small", bytes(size), b"small"]
    with pytest.raises(SendFailedError) as caught:
        client.send_many(topic, [Outgoing(value, partition=0) for value in messages])
    failed = caught.value
    assert list(failed.failures) == [1]
    assert not failed.is_uncertain
    assert [each is not None for each in failed.sent] == [True, False, True]
    error = failed.failures[1]
    assert isinstance(error, RejectedError)
    assert error.code == ErrorCode.MESSAGE_TOO_LARGE
    assert error.hint
