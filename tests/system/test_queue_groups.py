"""Groups of the queue API with real brokers: who is in them, what they get, who is kept out.

Ordered groups to the end; of queue groups what concerns their members.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as kafka
import confluent_kafka.admin
import grpc
import pytest
from queue_worker import CALL_SECONDS, Refused, Worker, door

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

pytestmark = pytest.mark.system

SETTINGS = {
    "GROUP__SESSION_TIMEOUT_MS_MIN": "500",
    "GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}
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


class Topic:
    """A topic of its own for each test."""

    def __init__(self, stub: Any, partitions: int) -> None:
        self.name = f"t{next(_numbers)}"
        self._stub = stub
        stub.CreateTopic(
            pb.CreateTopicRequest(topic=self.name, partitions=partitions), timeout=CALL_SECONDS
        )

    def send(self, *values: str, partition: int = 0) -> None:
        messages = [
            pb.OutgoingMessage(value=value.encode(), partition=partition) for value in values
        ]
        request = pb.SendBatchRequest(topic=self.name, messages=messages)
        for answer in self._stub.SendBatch(iter([request]), timeout=CALL_SECONDS):
            assert not answer.failures


@pytest.fixture
def topic(stub: Any) -> Topic:
    return Topic(stub, 1)


def values(messages: list[pb.Message]) -> list[str]:
    return [message.value.decode() for message in messages]


def take(worker: Worker) -> list[pb.Message]:
    """What comes next, whenever that is."""
    return wait_until(lambda: worker.poll(wait_ms=30_000), "a message comes")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


# ---- ordered groups


@pytest.mark.safety
def test_a_poll_repeats_until_everything_before_is_acked(broker: Broker, topic: Topic) -> None:
    topic.send("a", "b", "c", "d")
    with Worker(broker.grpc_address, "o1", topic.name) as worker:
        assert worker.connected.mode == pb.ORDERED
        assert worker.partitions == {(topic.name, 0)}
        first = worker.poll()
        assert values(first) == ["a", "b", "c", "d"]
        assert values(worker.poll()) == ["a", "b", "c", "d"]
        assert values(worker.poll(2)) == ["a", "b"]
        # Everything up to it, in any order, and once only.
        assert worker.ack(first[1]) == []
        assert values(worker.poll()) == ["c", "d"]
        assert worker.ack(first[0], first[1]) == ["SETTLED", "SETTLED"]
        assert worker.ack(first[3]) == []
        assert worker.ack(first[2]) == ["SETTLED"]
        assert worker.poll() == []


def test_a_poll_waits_for_what_comes(broker: Broker, topic: Topic) -> None:
    with Worker(broker.grpc_address, "o2", topic.name) as worker:
        assert worker.poll(wait_ms=200) == []
        later = threading.Timer(0.3, topic.send, ["x"])
        later.start()
        assert values(take(worker)) == ["x"]
        later.join()


def test_what_is_sent_back_comes_again_after_its_pause(broker: Broker, topic: Topic) -> None:
    topic.send("a", "b")
    with Worker(broker.grpc_address, "o3", topic.name) as worker:
        first = worker.poll()

        def is_held_back() -> bool:
            """False if the machine was so slow that the pause was over before it was seen."""
            began = time.monotonic()
            assert worker.nack(first[0], delay_ms=700) == []
            found = worker.poll()
            is_in_time = time.monotonic() - began < 0.7
            assert not (is_in_time and found)
            return is_in_time

        wait_until(is_held_back, "the pause is seen")
        assert values(take(worker)) == ["a", "b"]
        assert worker.ack(first[0]) == []
        assert worker.nack(*first, delay_ms=0) == ["SETTLED"]
        assert values(worker.poll()) == ["b"]


def test_a_group_that_begins_at_the_end_sees_what_comes_then(broker: Broker, topic: Topic) -> None:
    topic.send("old")
    with Worker(broker.grpc_address, "o4", topic.name, start=pb.LATEST) as worker:
        assert worker.poll() == []
        topic.send("new")
        assert values(take(worker)) == ["new"]
        worker.disconnect()
    # Where it began is kept: the next one is not sent to another end.
    topic.send("newer")
    with Worker(broker.grpc_address, "o4", topic.name, start=pb.LATEST) as worker:
        wait_until(lambda: worker.partitions, "it has partitions")
        assert values(take(worker)) == ["new", "newer"]


def test_members_share_partitions_and_take_over(broker: Broker, stub: Any) -> None:
    topic = Topic(stub, 4)
    for partition in range(4):
        topic.send("a", "b", partition=partition)
    with (
        Worker(broker.grpc_address, "o5", topic.name) as one,
        Worker(broker.grpc_address, "o5", topic.name) as two,
    ):
        wait_until(lambda: len(one.partitions) == len(two.partitions) == 2, "they share")
        assert not one.partitions & two.partitions
        mine = take(one)
        assert {(m.topic, m.partition) for m in mine} <= one.partitions
        theirs = {m.partition for m in take(two)}
        assert theirs <= {p for _, p in two.partitions}
        # An ack for what belongs to the other.
        stranger = mine[0]
        assert two.ack(stranger) == ["NOT_ASSIGNED"]
        assert two.nack(stranger) == ["NOT_ASSIGNED"]
        other = [pb.TopicPartitions(topic=topic.name, partitions=[stranger.partition])]
        assert refused(lambda: two.poll(partitions=other)) == "NOT_ASSIGNED"
        # What was acked stays so when another takes over; the rest comes to it.
        firsts: dict[int, pb.Message] = {}
        for message in wait_until(lambda: _of_both(one), "messages of both partitions come"):
            firsts.setdefault(message.partition, message)
        assert one.ack(*firsts.values()) == []
        one.disconnect()
        assert refused(one.poll) == "UNKNOWN_CONSUMER"
        assert refused(lambda: one.ack(stranger)) == "UNKNOWN_CONSUMER"
        wait_until(lambda: len(two.partitions) == 4, "one takes over")
        seen = wait_until(lambda: _all_of(two, 6), "the rest comes")
        assert seen is not None
        assert sorted(seen) == ["a", "a", "b", "b", "b", "b"]


def _of_both(worker: Worker) -> list[pb.Message]:
    found = worker.poll(wait_ms=500)
    return found if len({message.partition for message in found}) == 2 else []


def _all_of(worker: Worker, count: int) -> list[str] | None:
    found = values(worker.poll(wait_ms=500))
    return found if len(found) == count else None


def test_a_consumer_without_heartbeats_is_evicted(broker: Broker, topic: Topic) -> None:
    topic.send("a")
    silent, message = wait_until(lambda: _taken_in_silence(broker, topic), "it takes a message")
    assert silent.connected.session_timeout_ms == 1_000
    with Worker(broker.grpc_address, "o6", topic.name) as other:
        wait_until(lambda: other.partitions, "it has partitions")
        assert values(take(other)) == ["a"]
        assert wait_until(lambda: _why(silent.poll), "it is refused") == "UNKNOWN_CONSUMER"
        assert refused(lambda: silent.ack(message)) == "UNKNOWN_CONSUMER"
    silent.close()


def _taken_in_silence(broker: Broker, topic: Topic) -> tuple[Worker, pb.Message] | None:
    """None if the machine was so slow that it was evicted before."""
    silent = Worker(broker.grpc_address, "o6", topic.name, beats=False, session_timeout_ms=1_000)
    try:
        return silent, silent.poll(wait_ms=500)[0]
    except (Refused, IndexError):
        silent.close()
        return None


def _why(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except Refused as error:
        return error.reason
    return None


def test_bad_tokens_are_refused_one_by_one(broker: Broker, stub: Any, topic: Topic) -> None:
    topic.send("a")
    with (
        Worker(broker.grpc_address, "o7", topic.name) as worker,
        Worker(broker.grpc_address, "o7-other", topic.name) as other,
    ):
        good = take(worker)[0]
        theirs = take(other)[0]
        never = pb.Message(token=good.token[:21] + (99).to_bytes(8, "big") + good.token[29:])
        gone = pb.Message(token=good.token[:1] + b"\7" * 16 + good.token[17:])
        queued = pb.Message(token=b"\2" + good.token[1:])
        bad = (pb.Message(token=b""), pb.Message(token=b"x" * 40), never, gone, queued, theirs)
        assert worker.ack(*bad, good) == [
            "BAD_TOKEN",
            "BAD_TOKEN",
            "BAD_TOKEN",
            "UNKNOWN_TOPIC",
            "OTHER_GROUP",
            "OTHER_GROUP",
        ]
        assert refused(lambda: worker.extend(good, visibility_ms=1_000)) == "OTHER_MODE"
        assert refused(lambda: worker.poll(visibility_ms=1_000)) == "INVALID_ARGUMENT"


def test_kafkas_tools_see_an_ordered_group(broker: Broker, topic: Topic) -> None:
    topic.send("a", "b", "c")
    with Worker(broker.grpc_address, "o8", topic.name, client_id="worker") as worker:
        messages = take(worker)
        worker.ack(messages[1])
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        wanted = kafka.ConsumerGroupTopicPartitions("o8", [kafka.TopicPartition(topic.name, 0)])
        (found,) = admin.list_consumer_group_offsets([wanted])["o8"].result().topic_partitions
        assert found.offset == 2
        listed = admin.list_consumer_groups().result().valid
        assert "o8" in {group.group_id for group in listed}


# ---- which kind of group a name is


def test_a_queue_group_is_made_by_who_connects_first(broker: Broker, topic: Topic) -> None:
    settings = pb.QueueSettings(visibility_ms=9_000, attempts_max=3)
    with Worker(broker.grpc_address, "q1", topic.name, mode=pb.QUEUE, settings=settings) as first:
        assert first.connected.mode == pb.QUEUE
        assert first.connected.settings.visibility_ms == 9_000
        assert first.connected.settings.dead_letter_topic == "q1.dead"
        assert first.partitions == {(topic.name, 0)}
        # Who does not say gets what the group is.
        with Worker(broker.grpc_address, "q1", topic.name) as second:
            assert second.connected.mode == pb.QUEUE
            assert second.connected.settings.attempts_max == 3
            assert second.partitions == {(topic.name, 0)}


def connect(broker: Broker, group: str, topic: Topic, **asked: Any) -> None:
    Worker(broker.grpc_address, group, topic.name, beats=False, **asked).close()


def test_a_name_is_of_one_kind(broker: Broker, topic: Topic) -> None:
    connect(broker, "q2", topic, mode=pb.QUEUE)
    assert refused(lambda: connect(broker, "q2", topic, mode=pb.ORDERED)) == "OTHER_MODE"
    topic.send("a")
    with Worker(broker.grpc_address, "o9", topic.name) as worker:
        assert refused(lambda: connect(broker, "o9", topic, mode=pb.QUEUE)) == "OTHER_MODE"
        assert worker.ack(*take(worker)) == []
        worker.disconnect()
    # It has offsets, though no members.
    assert refused(lambda: connect(broker, "o9", topic, mode=pb.QUEUE)) == "OTHER_MODE"
    settings = pb.QueueSettings(attempts_max=3)
    assert refused(lambda: connect(broker, "o9", topic, settings=settings)) == "INVALID_ARGUMENT"


def consumer(broker: Broker, group: str, **config: Any) -> kafka.Consumer:
    return kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **config,
        }
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_consumers_do_not_get_into_a_queue(
    broker: Broker, topic: Topic, protocol: str
) -> None:
    group = f"q3-{protocol}"
    connect(broker, group, topic, mode=pb.QUEUE)
    topic.send("a")
    errors: list[kafka.KafkaError] = []
    mine = consumer(broker, group, error_cb=errors.append, **{"group.protocol": protocol})
    try:
        mine.subscribe([topic.name])

        def is_refused() -> bool:
            message = mine.poll(0.2)
            assert message is None or message.error() is not None
            return message is not None or bool(errors)

        wait_until(is_refused, "it is refused")
    finally:
        mine.close()


def test_no_consumer_of_kafka_shares_messages_by_asking_for_the_assignor(
    broker: Broker, topic: Topic
) -> None:
    with KafkaConnection(broker.host, broker.port) as connection:
        answer = connection.request(
            ConsumerGroupHeartbeatRequest(
                group_id="k-queue",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1_000,
                subscribed_topic_names=[topic.name],
                server_assignor="queue",
                topic_partitions=[],
            ),
            ConsumerGroupHeartbeatResponse,
            1,
        )
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_queue_does_not_take_the_name_of_kafkas_consumers(
    broker: Broker, topic: Topic, protocol: str
) -> None:
    group = f"k-{protocol}"
    topic.send("a")
    mine = consumer(broker, group, **{"group.protocol": protocol})
    try:
        mine.subscribe([topic.name])
        wait_until(lambda: mine.poll(0.2), "a message comes")
        assert refused(lambda: connect(broker, group, topic, mode=pb.QUEUE)) == "OTHER_MODE"
        if protocol == "classic":
            assert refused(lambda: connect(broker, group, topic)) == "OTHER_MODE"
    finally:
        mine.close()


def test_what_is_asked_out_of_bounds_is_refused(broker: Broker, topic: Topic) -> None:
    def why(*topics: str, **asked: Any) -> str:
        return refused(
            lambda: Worker(
                broker.grpc_address, asked.pop("group", "bad"), *topics, beats=False, **asked
            )
        )

    assert why("missing") == "UNKNOWN_TOPIC"
    assert why() == "INVALID_ARGUMENT"
    assert why(topic.name, group="") == "INVALID_ARGUMENT"
    assert why(topic.name, session_timeout_ms=1) == "INVALID_ARGUMENT"
    assert why("__consumer_offsets") == "INVALID_ARGUMENT"
    dead = pb.QueueSettings(dead_letter_topic=topic.name)
    assert why(topic.name, mode=pb.QUEUE, settings=dead) == "INVALID_ARGUMENT"
    short = pb.QueueSettings(backoff_ms=2, backoff_ms_max=1)
    assert why(topic.name, mode=pb.QUEUE, settings=short) == "INVALID_ARGUMENT"
    with Worker(broker.grpc_address, "bounds", topic.name) as worker:
        elsewhere = [pb.TopicPartitions(topic="missing", partitions=[0])]
        assert refused(lambda: worker.poll(partitions=elsewhere)) == "UNKNOWN_TOPIC"
        beyond = [pb.TopicPartitions(topic=topic.name, partitions=[7])]
        assert refused(lambda: worker.poll(partitions=beyond)) == "INVALID_ARGUMENT"
        worker.name = "stranger"
        assert refused(worker.poll) == "UNKNOWN_CONSUMER"


def test_groups_that_are_no_queues_have_no_numbers(broker: Broker, stub: Any, topic: Topic) -> None:
    def stats(group: str) -> None:
        try:
            stub.Stats(pb.StatsRequest(group=group), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise Refused(error) from None

    assert refused(lambda: stats("nobody")) == "UNKNOWN_GROUP"
    with Worker(broker.grpc_address, "o10", topic.name):
        assert refused(lambda: stats("o10")) == "OTHER_MODE"


# ---- several brokers


@pytest.mark.safety
def test_an_ordered_group_goes_on_when_brokers_die() -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        channel, stub = door(cluster.brokers[1].grpc_address)
        with channel:
            topic = Topic(stub, 3)
            for partition in range(3):
                topic.send(*(f"{partition}.{n}" for n in range(10)), partition=partition)
            done: list[str] = []
            workers = [
                Worker(one.grpc_address, "o", topic.name, session_timeout_ms=6_000)
                for one in cluster.brokers
            ]
            try:
                _work_through(workers, done, upto=12)
                victim = cluster.leader(topic.name, 0)
                at = next(n for n, one in enumerate(cluster.brokers) if one is victim)
                victim.kill()
                workers.pop(at).close()
                _work_through(workers, done, upto=30)
            finally:
                for worker in workers:
                    worker.close()
            for partition in range(3):
                mine = [value for value in done if value.startswith(f"{partition}.")]
                first_seen = list(dict.fromkeys(mine))
                # In order, and none left out.
                assert first_seen == [f"{partition}.{n}" for n in range(10)]


def _work_through(workers: list[Worker], done: list[str], *, upto: int) -> None:
    """Ask every broker for what it leads of each worker's partitions, and ack one at a time."""
    addresses = {one.address for one in workers}

    def is_done() -> bool:
        for worker, address in itertools.product(workers, addresses):
            try:
                for message in worker.at(address).poll(2, wait_ms=50):
                    done.append(message.value.decode())
                    worker.at(address).ack(message)
            except Refused as error:
                if error.reason not in ("NOT_LEADER", "UNAVAILABLE", "UNKNOWN_CONSUMER"):
                    raise
        return len(set(done)) >= upto

    wait_until(
        is_done,
        f"{upto} are done",
        describe=lambda: (len(set(done)), [worker.lost for worker in workers]),
    )


def test_kafkas_tools_do_not_delete_half_of_a_queue_group(broker: Broker, topic: Topic) -> None:
    group = f"{topic.name}-kept"
    connect(broker, group, topic, mode=pb.QUEUE)
    admin = kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(kafka.KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(timeout=wait_seconds_max())
    assert caught.value.args[0].code() == kafka.KafkaError.GROUP_ID_NOT_FOUND
