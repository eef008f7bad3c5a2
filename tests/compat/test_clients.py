"""Unmodified clients produce, consume in groups, commit and go on, with every codec."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.range import RangePartitionAssignor

from compat_clients import (
    CLIENTS,
    CODECS,
    PARTITIONS,
    Client,
    Message,
    Received,
    why_missing,
)
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

MESSAGES = 10_000
MESSAGES_OF_EACH = 2_000
"""Where every client reads what every client wrote: more of them would only be more of the same."""


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    if reason := why_missing(request.param):
        pytest.skip(reason)
    return CLIENTS[request.param]()


class Written:
    """Topics by client and codec, written once and read by every client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: dict[tuple[str, str], tuple[str, list[Message]]] = {}

    def get(self, client: Client, codec: str) -> tuple[str, list[Message]]:
        key = (client.name, codec)
        if key not in self._sent:
            topic = f"written-{client.name}-{codec}"
            messages = client.sample(MESSAGES_OF_EACH)
            client.create_topic(self._broker.bootstrap, topic)
            client.produce(self._broker.bootstrap, topic, messages, codec)
            self._sent[key] = (topic, messages)
        return self._sent[key]


@pytest.fixture(scope="module")
def written(broker: Broker) -> Written:
    return Written(broker)


def check_complete(received: Iterable[Received], sent: list[Message]) -> None:
    """Every message once, in the order of its partition, at offsets from 0 without a gap."""
    expected: dict[int, list[Message]] = defaultdict(list)
    for message in sent:
        expected[message.partition].append(message)
    got: dict[int, list[Received]] = defaultdict(list)
    for item in received:
        got[item.message.partition].append(item)
    assert sorted(got) == sorted(expected)
    for partition, items in got.items():
        assert [item.offset for item in items] == list(range(len(expected[partition])))
        for item, wanted in zip(items, expected[partition], strict=True):
            if wanted.timestamp_ms is None:
                assert (item.message.timestamp_ms or 0) > 0
                wanted = wanted._replace(timestamp_ms=item.message.timestamp_ms)
            assert item.message == wanted


@pytest.mark.safety
@pytest.mark.parametrize("codec", CODECS)
def test_a_client_writes_and_a_restarted_group_goes_on_where_it_committed(
    broker: Broker,
    client: Client,
    codec: str,
    new_name: Callable[[str], str],
) -> None:
    topic, group, sent = new_name("own"), new_name("group"), client.sample(MESSAGES)
    client.create_topic(broker.bootstrap, topic)
    client.produce(broker.bootstrap, topic, sent, codec)
    first = client.consume(broker.bootstrap, [topic], group, MESSAGES // 3)
    rest = client.consume(broker.bootstrap, [topic], group, MESSAGES - MESSAGES // 3)
    check_complete(first + rest, sent)


@pytest.mark.parametrize("codec", CODECS)
def test_a_client_reads_what_the_others_wrote(
    broker: Broker,
    written: Written,
    client: Client,
    codec: str,
    new_name: Callable[[str], str],
) -> None:
    writers = [CLIENTS[name]() for name in CLIENTS if why_missing(name) is None]
    sent = dict(written.get(writer, codec) for writer in writers)
    received = client.consume(
        broker.bootstrap, list(sent), new_name("readers"), MESSAGES_OF_EACH * len(sent)
    )
    for topic, messages in sent.items():
        check_complete([item for item in received if item.topic == topic], messages)


@pytest.mark.safety
def test_a_group_goes_on_where_it_committed_after_the_broker_restarts(client: Client) -> None:
    with Broker(settings={"TOPIC__PARTITIONS": str(PARTITIONS)}) as own:
        sent = client.sample(900)
        client.create_topic(own.bootstrap, "topic")
        client.produce(own.bootstrap, "topic", sent[:600], "none")
        first = client.consume(own.bootstrap, ["topic"], "group", 400)
        own.restart()
        client.produce(own.bootstrap, "topic", sent[600:], "none")
        rest = client.consume(own.bootstrap, ["topic"], "group", 500)
    check_complete(first + rest, sent)


def test_a_first_produce_gets_offset_0_and_offsets_are_dense(
    broker: Broker, new_name: Callable[[str], str]
) -> None:
    offsets: dict[int, list[int]] = defaultdict(list)

    def delivered(error: object, message: Any) -> None:
        assert error is None
        offsets[message.partition()].append(message.offset())

    topic = new_name("created-by-producing")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 3})
    for number in range(100):
        # One request each: what the broker adds of its own between requests would show.
        producer.produce(topic, b"x", partition=number % PARTITIONS, on_delivery=delivered)
        assert producer.flush(wait_seconds_max()) == 0
    assert sorted(offsets) == list(range(PARTITIONS))
    for found in offsets.values():
        assert found == list(range(len(found)))


def test_members_of_different_clients_share_one_group(
    broker: Broker, new_name: Callable[[str], str]
) -> None:
    """librdkafka and kafka-python read each other's subscriptions through the broker."""
    topic, group = new_name("topic"), new_name("group")
    CLIENTS["confluent-kafka"]().create_topic(broker.bootstrap, topic)
    fast = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 500,
            "log_level": 3,
        }
    )
    fast.subscribe([topic])
    slow = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        partition_assignment_strategy=[RangePartitionAssignor],
        heartbeat_interval_ms=500,
    )
    # One that learns of its topic after its first join may forget the next (kafka-python 3.0).
    slow.partitions_for_topic(topic)
    owned: list[list[int]] = []

    def is_shared() -> bool:
        fast.poll(0.1)
        slow.poll(timeout_ms=100)
        owned[:] = [
            sorted(part.partition for part in fast.assignment()),
            sorted(part.partition for part in slow.assignment()),
        ]
        return sorted(map(len, owned)) == [1, 2] and sorted(owned[0] + owned[1]) == list(
            range(PARTITIONS)
        )

    try:
        wait_until(is_shared, "both have their share", describe=lambda: owned)
    finally:
        fast.close()
        slow.close()
