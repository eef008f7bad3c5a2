"""Queue groups with real brokers, as far as their members and their name are concerned."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from queue_worker import CALL_SECONDS, Refused, Worker, door

from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

SETTINGS = {
    "GROUP__SESSION_TIMEOUT_MS_MIN": "500",
    "GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}
LONG = pb.QueueSettings(visibility_ms=3_600_000)
"""Whatever comes again before that does so because somebody is gone."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as started:
        yield started


@pytest.fixture
def stub(broker: Broker) -> Iterator[Any]:
    channel, made = door(broker.grpc_address)
    with channel:
        yield made


@pytest.fixture
def topic(stub: Any) -> str:
    return new_topic(stub, 1)


def new_topic(stub: Any, partitions: int) -> str:
    name = f"q{next(_numbers)}"
    request = pb.CreateTopicRequest(topic=name, partitions=partitions)
    stub.CreateTopic(request, timeout=CALL_SECONDS)
    return name


def send(stub: Any, topic: str, *values: str) -> None:
    messages = [pb.OutgoingMessage(value=value.encode()) for value in values]
    request = pb.SendBatchRequest(topic=topic, messages=messages)
    for answer in stub.SendBatch(iter([request]), timeout=CALL_SECONDS):
        assert not answer.failures


def work(broker: Broker, topic: str, group: str = "", **asked: Any) -> Worker:
    settings = asked.pop("settings", LONG)
    return Worker(
        broker.grpc_address, group or f"g-{topic}", topic, mode=pb.QUEUE, settings=settings, **asked
    )


def values(messages: list[pb.Message]) -> list[str]:
    return sorted(message.value.decode() for message in messages)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


def take(worker: Worker) -> list[pb.Message]:
    """What comes next, whenever that is."""
    return wait_until(lambda: worker.poll(wait_ms=30_000), "a message comes")


def ask(method: Any, request: Any) -> Any:
    try:
        return method(request, timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        raise Refused(error) from None


def test_any_member_takes_any_message_and_no_two_the_same(
    broker: Broker, stub: Any, topic: str
) -> None:
    send(stub, topic, "a", "b", "c")
    with work(broker, topic) as one, work(broker, topic) as two:
        mine, theirs = one.poll(2), two.poll(2)
        assert values([*mine, *theirs]) == ["a", "b", "c"]
        assert one.ack(*theirs) == ["NOT_HOLDER"]
        assert one.ack(*mine) == two.ack(*theirs) == []
        assert one.poll() == two.poll() == []


def test_who_leaves_gives_back_what_it_has_at_once(broker: Broker, stub: Any, topic: str) -> None:
    send(stub, topic, "a")
    with work(broker, topic) as one, work(broker, topic) as two:
        (held,) = one.poll()
        assert two.poll() == []
        one.disconnect()
        assert values(take(two)) == ["a"]
        assert refused(one.poll) == "UNKNOWN_CONSUMER"
        assert refused(lambda: one.ack(held)) == "UNKNOWN_CONSUMER"


def taken_in_silence(broker: Broker, topic: str) -> tuple[Worker, pb.Message] | None:
    """None if the machine was so slow that it was evicted before."""
    silent = work(broker, topic, beats=False, session_timeout_ms=1_000)
    try:
        return silent, silent.poll(wait_ms=500)[0]
    except (Refused, IndexError):
        silent.close()
        return None


def test_who_vanishes_is_evicted_and_its_messages_go_to_others(
    broker: Broker, stub: Any, topic: str
) -> None:
    send(stub, topic, "a")
    gone, held = wait_until(lambda: taken_in_silence(broker, topic), "it takes a message")
    with work(broker, topic) as other:
        assert values(take(other)) == ["a"]
        assert refused(lambda: gone.ack(held)) == "UNKNOWN_CONSUMER"
        assert refused(lambda: gone.extend(held, visibility_ms=1_000)) == "UNKNOWN_CONSUMER"
    gone.close()


def test_a_poll_that_waits_ends_when_its_consumer_is_evicted(
    broker: Broker, stub: Any, topic: str
) -> None:
    gone = work(broker, topic, beats=False, session_timeout_ms=1_000)
    # It would wait for a minute, and take what comes in the name of nobody.
    assert refused(lambda: gone.poll(wait_ms=59_000)) == "UNKNOWN_CONSUMER"
    gone.close()


def test_a_consumer_polls_the_topics_that_it_asked_for(
    broker: Broker, stub: Any, topic: str
) -> None:
    second = new_topic(stub, 1)
    send(stub, topic, "first")
    send(stub, second, "second")
    with work(broker, topic, "two") as one, work(broker, second, "two") as other:
        assert one.partitions == {(topic, 0)}
        assert values(one.poll()) == ["first"]
        assert values(other.poll()) == ["second"]
        stats = ask(stub.Stats, pb.StatsRequest(group="two"))
        assert {(one.topic, one.leased) for one in stats.partitions} == {(topic, 1), (second, 1)}
        assert stats.consumers == 2


def test_settings_are_the_groups_and_changed_by_who_connects(
    broker: Broker, stub: Any, topic: str
) -> None:
    with work(broker, topic, "s", settings=pb.QueueSettings(attempts_max=7)) as first:
        assert first.connected.settings.visibility_ms == 30_000
        changed = pb.QueueSettings(visibility_ms=400)
        with work(broker, topic, "s", settings=changed) as second:
            assert second.connected.settings.attempts_max == 7
            send(stub, topic, "a")
            (held,) = take(first)
            # The lease is as long as the second one wished, also for the first.
            again = take(second)
            assert values(again) == ["a"]
            assert again[0].attempt == 2
            assert first.ack(held) == ["EXPIRED"]


@pytest.mark.safety
def test_a_deleted_group_forgets_and_its_name_is_free(
    broker: Broker, stub: Any, topic: str
) -> None:
    send(stub, topic, "a")
    delete = pb.DeleteGroupRequest(group="d")
    assert refused(lambda: ask(stub.DeleteGroup, delete)) == "UNKNOWN_GROUP"
    with work(broker, topic, "d") as worker:
        assert worker.ack(*worker.poll()) == []
        ask(stub.DeleteGroup, delete)
        assert refused(worker.poll) in ("UNKNOWN_CONSUMER", "UNKNOWN_GROUP")
        wait_until(lambda: worker.lost, "its heartbeats are refused")
        assert worker.lost == "UNKNOWN_CONSUMER"
    assert refused(lambda: ask(stub.Stats, pb.StatsRequest(group="d"))) == "UNKNOWN_GROUP"
    with work(broker, topic, "d") as worker:
        assert values(take(worker)) == ["a"]
        worker.disconnect()
    ask(stub.DeleteGroup, delete)
    # Of the other kind, if somebody likes.
    with Worker(broker.grpc_address, "d", topic) as worker:
        assert worker.connected.mode == pb.ORDERED
        assert values(take(worker)) == ["a"]


def test_a_queue_that_starts_at_the_end_sees_what_comes_then(
    broker: Broker, stub: Any, topic: str
) -> None:
    send(stub, topic, "old")
    with work(broker, topic, start=pb.LATEST) as worker:
        assert worker.poll(wait_ms=300) == []
        send(stub, topic, "new")
        assert values(take(worker)) == ["new"]


@pytest.mark.safety
def test_a_queue_is_worked_through_whichever_brokers_lead_it() -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        addresses = [one.grpc_address for one in cluster.brokers]
        channel, stub = door(addresses[0])
        with channel:
            topic = new_topic(stub, 3)
            sent = [str(number) for number in range(60)]
            send(stub, topic, *sent)
            # Only the first is to be missed, and not before it took something.
            workers = [
                Worker(address, "g", topic, mode=pb.QUEUE, settings=LONG, session_timeout_ms=ms)
                for address, ms in zip(addresses, (6_000, 45_000, 45_000), strict=True)
            ]
            assert {len(worker.partitions) for worker in workers} == {3}
            leaders = {one.leader_address for one in workers[0].assignment.partitions}
            assert leaders <= set(addresses)
            # One takes a few everywhere, and is not heard of any more.
            for address in addresses:
                workers[0].at(address).poll(3)
            workers.pop(0).close()
            done: list[str] = []

            def is_done() -> bool:
                for worker, address in itertools.product(workers, addresses):
                    messages = worker.at(address).poll(10, wait_ms=50)
                    assert not messages or worker.at(address).ack(*messages) == []
                    done.extend(message.value.decode() for message in messages)
                return len(done) >= 60

            wait_until(is_done, "all are done", describe=lambda: len(done))
            assert sorted(done) == sorted(sent)
            for worker in workers:
                worker.close()
