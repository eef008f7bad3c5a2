"""A worker gets messages from every leader, settles them there, and survives its own eviction."""

import gc
import time

import pytest
from queue_brokers import FakeCluster, once_polls_wait

from moldau import (
    ClientError,
    InvalidArgumentError,
    LeaseLostError,
    QueueClient,
    UnavailableError,
    UnreachableError,
)
from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.inprocess


def fill(brokers: FakeCluster, count: int, partitions: int = 2) -> None:
    for number in range(count):
        brokers.append(
            "jobs", pb.OutgoingMessage(value=b"%d" % number, partition=number % partitions)
        )


def test_messages_of_all_leaders_are_polled_and_acked(
    client: QueueClient, brokers: FakeCluster
) -> None:
    fill(brokers, 100)
    worker = client.connect("g", "jobs")
    seen: set[str] = set()
    while len(seen) < 100:
        messages = worker.poll(7, wait=wait_seconds_max())
        assert messages
        assert worker.ack(messages) == []
        seen |= {message.text for message in messages}
    assert worker.poll(7, wait=0.2) == []
    assert seen == {f"{number}" for number in range(100)}
    queues = brokers.groups["g"].queues
    assert {place: len(queue.settled) for place, queue in queues.items()} == {
        ("jobs", 0): 50,
        ("jobs", 1): 50,
    }


def test_brokers_take_turns(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 100)
    worker = client.connect("g", "jobs")
    places = [worker.poll(5, wait=wait_seconds_max())[0].partition for _ in range(10)]
    assert 3 <= sum(places) <= 7


def test_a_message_has_what_was_sent(client: QueueClient) -> None:
    client.send("jobs", {"id": 1}, key="k", headers={"h": "v", "n": None})
    (message,) = client.connect("g", "jobs").poll(wait=wait_seconds_max())
    assert message.json() == {"id": 1}
    assert (message.key, message["key"], message.attempt) == (b"k", b"k", 1)
    assert message.headers == [("h", b"v"), ("n", None)]
    assert dict(message)["topic"] == "jobs"
    assert message.lease_until is not None
    assert message.time.year == 1970
    with pytest.raises(KeyError):
        message["token"]


def test_a_poll_returns_as_soon_as_there_is_something(
    client: QueueClient, brokers: FakeCluster
) -> None:
    worker = client.connect("g", "jobs")
    assert worker.poll(wait=0) == []
    began = time.monotonic()
    assert worker.poll(wait=0.2) == []
    assert time.monotonic() - began >= 0.2
    fill(brokers, 1)
    assert len(worker.poll(10, wait=wait_seconds_max())) == 1


def test_what_arrives_after_a_poll_is_for_the_next_one(
    client: QueueClient, brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.client.queue.poller.KEEP_SECONDS_MAX", wait_seconds_max())
    worker = client.connect("g", "jobs")
    # Both leaders wait, and both get a message at once.
    brokers.answer_delay = 0.05
    fill_later = once_polls_wait(brokers, lambda: fill(brokers, 2))
    first = worker.poll(1, wait=wait_seconds_max())
    fill_later.join()
    second = worker.poll(1, wait=wait_seconds_max())
    assert {first[0].text, second[0].text} == {"0", "1"}
    assert [first[0].attempt, second[0].attempt] == [1, 1]


def test_what_is_not_fetched_is_given_back(client: QueueClient, brokers: FakeCluster) -> None:
    idle, busy = client.connect("g", "jobs"), client.connect("g", "jobs")
    fill_later = once_polls_wait(brokers, lambda: fill(brokers, 2))
    (mine,) = idle.poll(1, wait=wait_seconds_max())
    fill_later.join()
    (other,) = busy.poll(1, wait=wait_seconds_max())
    assert {mine.text, other.text} == {"0", "1"}


def test_the_end_of_a_worker_gives_back_what_it_had(
    client: QueueClient, brokers: FakeCluster
) -> None:
    fill(brokers, 1)
    with client.connect("g", "jobs") as worker:
        assert len(worker.poll(wait=wait_seconds_max())) == 1
    assert worker.is_closed
    with pytest.raises(ClientError, match="closed"):
        worker.poll()
    (again,) = client.connect("g", "jobs").poll(wait=wait_seconds_max())
    assert again.attempt == 2


def test_tokens_go_back_to_the_leader_that_they_came_from(
    client: QueueClient, brokers: FakeCluster
) -> None:
    fill(brokers, 20)
    worker = client.connect("g", "jobs")
    messages = worker.poll(10, wait=wait_seconds_max()) + worker.poll(10, wait=wait_seconds_max())
    assert {message.partition for message in messages} == {0, 1}
    assert worker.ack(messages) == []
    assert brokers.calls("Ack") == {1: 1, 2: 1}


def test_a_nacked_message_comes_again_after_its_delay(
    client: QueueClient, brokers: FakeCluster
) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs")
    (message,) = worker.poll(wait=wait_seconds_max())
    nacked = time.monotonic()
    message.nack(delay=0.3, reason="not now")
    (again,) = worker.poll(wait=wait_seconds_max())
    assert time.monotonic() - nacked >= 0.3
    assert again.attempt == 2


def test_an_extended_message_outlives_its_lease(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs", visibility=30)
    (message,) = worker.poll(wait=wait_seconds_max())
    message.extend(60)
    brokers.ahead_seconds = 31
    assert worker.poll(wait=0) == []
    message.ack()
    assert message.is_settled


def test_a_lease_that_expired_is_reported_by_ack(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs", visibility=0.1)
    (message,) = worker.poll(wait=wait_seconds_max())
    (again,) = worker.poll(wait=wait_seconds_max())
    with pytest.raises(LeaseLostError) as raised:
        message.ack()
    assert raised.value.reason == "EXPIRED"
    assert "redelivered" in raised.value.hint
    assert not message.is_settled
    (refused,) = worker.ack([message])
    assert (refused.message, refused.reason) == (message, "EXPIRED")
    assert again.attempt == 2


def test_a_repeated_ack_is_done(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs")
    (message,) = worker.poll(wait=wait_seconds_max())
    message.ack()
    message.ack()
    assert worker.ack([message]) == []
    with pytest.raises(LeaseLostError) as raised:
        message.nack()
    assert raised.value.reason == "SETTLED"


def test_acks_follow_a_new_leader(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 2, partitions=1)
    worker = client.connect("g", "jobs")
    first, second = worker.poll(2, wait=wait_seconds_max())
    brokers.move("jobs", 0, 2)
    refused = worker.ack([first, second])
    assert [each.reason for each in refused] == ["EXPIRED", "EXPIRED"]
    again = worker.poll(2, wait=wait_seconds_max())
    assert [message.text for message in again] == ["0", "1"]
    assert worker.ack(again) == []


def test_an_ack_is_retried_until_a_broker_accepts_it(
    client: QueueClient, brokers: FakeCluster
) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs")
    (message,) = worker.poll(wait=wait_seconds_max())
    brokers.brokers[1].refusals["Ack"] = [(pb.UNAVAILABLE, False), (pb.BUSY, False)]
    message.ack()
    assert brokers.calls("Ack")[1] == 3


def test_an_ack_that_reaches_no_broker_says_so(brokers: FakeCluster) -> None:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max() / 20) as client:
        fill(brokers, 1)
        worker = client.connect("g", "jobs")
        (message,) = worker.poll(wait=wait_seconds_max())
        brokers.kill(1)
        with pytest.raises(UnavailableError, match="cannot settle"):
            message.ack()


def test_acks_side_by_side_share_a_call(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 50, partitions=1)
    done = client.work("g", "jobs", lambda message: None, concurrency=50, limit=50)
    assert done == (50, 0)
    assert brokers.calls("Ack")[1] < 25


def test_an_evicted_worker_connects_again_by_itself(
    client: QueueClient, brokers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(brokers, 1)
    worker = client.connect("g", "jobs")
    (message,) = worker.poll(wait=wait_seconds_max())
    before = worker.consumer
    brokers.evict("g")
    (again,) = worker.poll(wait=wait_seconds_max())
    assert worker.consumer != before
    assert again.consumer == worker.consumer
    assert "reconnecting" in caplog.text
    with pytest.raises(LeaseLostError) as raised:
        message.ack()
    assert raised.value.reason == "UNKNOWN_CONSUMER"
    again.ack()


def test_heartbeats_go_on_at_another_broker(client: QueueClient, brokers: FakeCluster) -> None:
    brokers.create("other", 1)
    worker = client.connect("g", "other")
    wait_until(lambda: sum(brokers.calls("Heartbeat").values()) > 2, "it beats")
    busy = max(brokers.brokers, key=lambda number: brokers.calls("Heartbeat")[number])
    other = 3 - busy
    heard = brokers.calls("Heartbeat")[other]
    brokers.kill(busy)
    wait_until(lambda: brokers.calls("Heartbeat")[other] > heard + 2, "it beats elsewhere")
    assert worker.consumer in brokers.groups["g"].consumers


def test_new_assignments_come_with_heartbeats(client: QueueClient, brokers: FakeCluster) -> None:
    worker = client.connect("g", ["jobs", "later"])
    assert worker.assignment() == [("jobs", 0), ("jobs", 1)]
    brokers.create("later", 1)
    brokers.groups["g"].epoch += 1
    wait_until(lambda: ("later", 0) in worker.assignment(), "it is told")
    client.send("later", "x")
    (message,) = worker.poll(wait=wait_seconds_max())
    assert message.topic == "later"


def test_an_outage_looks_empty_at_first_and_then_is_reported(brokers: FakeCluster) -> None:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max() / 20) as client:
        worker = client.connect("g", "jobs")
        brokers.kill(1)
        brokers.kill(2)
        assert worker.poll(wait=0.1) == []
        with pytest.raises(UnreachableError) as raised:
            any(worker.poll(wait=0.3) for _ in range(100))
        assert brokers.addresses[0] in str(raised.value)
        brokers.revive(1)
        brokers.revive(2)
        fill(brokers, 1)
        assert len(worker.poll(wait=wait_seconds_max())) == 1


def test_one_broker_less_is_no_outage(client: QueueClient, brokers: FakeCluster) -> None:
    worker = client.connect("g", "jobs")
    brokers.kill(2)
    fill(brokers, 1)
    assert len(worker.poll(wait=wait_seconds_max())) == 1


def test_iterating_a_worker_yields_messages(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 3, partitions=1)
    texts = []
    for message in client.connect("g", "jobs"):
        texts.append(message.text)
        message.ack()
        if len(texts) == 3:
            break
    assert texts == ["0", "1", "2"]


def test_a_loop_that_is_left_gives_back_the_rest(client: QueueClient, brokers: FakeCluster) -> None:
    fill(brokers, 60, partitions=1)
    for seen, message in enumerate(client.connect("g", "jobs"), 1):
        message.ack()
        if seen == 10:
            break
    gc.collect()
    queue = brokers.groups["g"].queues["jobs", 0]
    assert len(queue.settled) == 10
    wait_until(lambda: not queue.leases, "the rest is given back")


@pytest.mark.parametrize(
    "poll", [{"max_messages": 0}, {"max_messages": 10**6}, {"wait": -1}, {"visibility": -1}]
)
def test_polls_out_of_bounds_are_refused(client: QueueClient, poll: dict[str, float]) -> None:
    worker = client.connect("g", "jobs")
    with pytest.raises(InvalidArgumentError):
        worker.poll(**poll)  # type: ignore[arg-type]


def test_a_mode_that_is_none_is_refused(client: QueueClient) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown mode 'fast'"):
        client.connect("g", "jobs", mode="fast")  # type: ignore[arg-type]
