"""Transactions over our own connections and real brokers: ended by others, fenced, timed out."""

from collections.abc import Callable, Iterator

import pytest

from moldau.client.errors import InvalidArgumentError, RejectedError
from moldau.client.wire.batch_sender import BatchSender, OutgoingBatch
from moldau.client.wire.client import OFFSET_LATEST, KafkaClient
from moldau.client.wire.transactions import (
    FencedError,
    TransactionalProducer,
    TransactionClient,
    seconds_left,
)
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

pytestmark = pytest.mark.system


@pytest.fixture
def client(moldau_session_broker: Broker) -> Iterator[KafkaClient]:
    with KafkaClient(moldau_session_broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    name = new_name("transactions")
    client.create_topic(name, partitions=2)
    return name


def batch(producer: TransactionalProducer, *values: bytes, sequence: int = 0) -> bytes:
    records = [Record(Offset(0), TimestampMs(1000), None, value, []) for value in values]
    return build_batch(
        records,
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=ProducerEpoch(producer.epoch),
        base_sequence=sequence,
        transactional=True,
    )


def write(client: KafkaClient, producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    """To both partitions, in several batches each."""
    TransactionClient(client).add_partitions(producer, {topic: [0, 1]})
    sender = BatchSender(client, transactional_id=producer.name)
    sender.post(
        OutgoingBatch(topic, partition, batch(producer, value, sequence=number))
        for partition in (0, 1)
        for number, value in enumerate(values)
    )
    sender.settle()


def stable_end(client: KafkaClient, topic: str, partition: int = 0) -> int:
    listed = ListOffsetsPartition(partition_index=partition, timestamp=OFFSET_LATEST)
    topics = [ListOffsetsTopic(name=topic, partitions=[listed])]
    request = ListOffsetsRequest(isolation_level=1, topics=topics)
    response = client.leader(topic, partition).request(request, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def check_stable_ends(client: KafkaClient, topic: str, end: int) -> None:
    """The markers of an end that is decided come to each partition in their own time."""

    def are_there() -> bool:
        ends = [stable_end(client, topic, p) for p in (0, 1)]
        assert max(ends) <= end
        return ends == [end, end]

    wait_until(are_there, "both partitions have their markers")


def test_a_transaction_is_ended_by_any_client_that_knows_its_three(
    client: KafkaClient, topic: str, new_name: Callable[[str], str]
) -> None:
    transactions = TransactionClient(client)
    producer = transactions.begin(new_name("tx"), timeout_ms=60_000)
    write(client, producer, topic, b"a", b"b", b"c")
    assert stable_end(client, topic) == 0
    with KafkaClient(client.any_broker().address) as other:
        ender = TransactionClient(other)
        assert ender.end_all([producer], commit=True) == {}
        # Once more: an answer may have been lost.
        assert ender.end_all([producer], commit=True) == {}
        ender.end(producer, commit=True)
    # Three records and the marker.
    check_stable_ends(client, topic, 4)


def test_a_producer_that_begins_with_the_same_name_aborts_and_fences(
    client: KafkaClient, topic: str, new_name: Callable[[str], str]
) -> None:
    transactions = TransactionClient(client)
    name = new_name("tx")
    first = transactions.begin(name, timeout_ms=60_000)
    write(client, first, topic, b"a")
    assert transactions.open_names(name) == [name]
    found = transactions.describe([name, "nobody"])
    assert set(found) == {name}
    assert (found[name].producer_id, found[name].producer_epoch) == first[1:]
    assert 0 < seconds_left(found[name]) <= 61
    assert transactions.expiring(found, 1.0) == set()
    assert transactions.expiring(found, 60.0) == {name}
    second = transactions.begin(name, timeout_ms=60_000)
    assert second.epoch > first.epoch
    assert transactions.open_names(name) == []
    fenced = transactions.end_all([first], commit=True)
    assert list(fenced) == [first]
    assert "uses its id" in fenced[first].hint
    with pytest.raises(FencedError, match="cannot add partitions"):
        transactions.add_partitions(first, {topic: [0]})
    sender = BatchSender(client, transactional_id=name)
    sender.post([OutgoingBatch(topic, 0, batch(first, b"late", sequence=1))])
    with pytest.raises(RejectedError):
        sender.settle()


def test_a_transaction_that_timed_out_cannot_be_committed(
    client: KafkaClient, topic: str, new_name: Callable[[str], str]
) -> None:
    transactions = TransactionClient(client)
    name = new_name("tx")
    # Time enough to write, also on a busy machine.
    producer = transactions.begin(name, timeout_ms=5_000)
    write(client, producer, topic, b"a")
    wait_until(lambda: not transactions.open_names(name), "the transaction is over")
    with pytest.raises(FencedError, match="cannot commit the transaction"):
        transactions.end(producer, commit=True)


def test_a_timeout_that_brokers_do_not_allow_is_said_with_both_settings(
    client: KafkaClient, new_name: Callable[[str], str]
) -> None:
    with pytest.raises(InvalidArgumentError, match="2000000000 ms exceeds") as caught:
        TransactionClient(client).begin(new_name("tx"), timeout_ms=2_000_000_000)
    assert "transaction.timeout_ms_max" in caught.value.hint


def test_a_batch_that_the_topic_does_not_take_names_the_setting(
    client: KafkaClient, new_name: Callable[[str], str]
) -> None:
    name = new_name("small")
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    record = Record(Offset(0), TimestampMs(1000), None, b"x" * 2000, [])
    sender = BatchSender(client)
    sender.post([OutgoingBatch(name, 0, build_batch([record]))])
    with pytest.raises(RejectedError, match="exceeds the topic") as caught:
        sender.settle()
    assert "kafka.batch.size" in caught.value.hint


@pytest.mark.safety
def test_transactions_outlive_the_leader_and_the_coordinator(
    new_name: Callable[[str], str],
) -> None:
    name = new_name("tx")
    with Cluster(brokers=3) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("out", partitions=2)
        transactions = TransactionClient(client)
        producer = transactions.begin(name, timeout_ms=300_000)
        write(client, producer, "out", b"a")
        cluster.leader("out", 0).kill()
        sender = BatchSender(client, transactional_id=name)
        sender.post(
            OutgoingBatch("out", p, batch(producer, b"b%d" % number, sequence=number))
            for p in (0, 1)
            for number in (1, 2)
        )
        sender.settle()
        wait_until(lambda: transactions.open_names(name) == [name], "the transaction is found")
        assert transactions.end_all([producer], commit=True) == {}
        check_stable_ends(client, "out", 4)
