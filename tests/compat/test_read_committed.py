"""Transactions in a partition as clients see them: what is stable, what was aborted, what is late.

Numbers 15, 19 and 20 of what is known to break clients, with a raw client; then unmodified ones,
which read the same of a topic that several producers have written to at once.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.records.batch import read_header
from moldau.records.control import read_end_marker
from moldau.records.record import build_batch
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    ProducerState,
)
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.wire.messages.fetch import FetchResponsePartition
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.produce import ProduceResponse, ProduceResponsePartition
from raw_client import RawClient, batches, produce_request, record, records

pytestmark = [pytest.mark.compat, pytest.mark.system]

COMMITTED = 1
LATEST = -1
V1, V2 = 11, 12
"""Versions of Produce."""


class Transactional:
    """A transactional producer, one request at a time. With V2 the broker adds partitions."""

    def __init__(self, raw: RawClient, name: str, *, version: int) -> None:
        self.raw = raw
        self.name = name
        self.version = version
        self.sequences: dict[str, int] = {}
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)

        def born() -> InitProducerIdResponse | None:
            answer = raw.request(asked, InitProducerIdResponse)
            if answer.error_code == ErrorCode.NONE:
                return answer
            assert answer.error_code in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            )
            return None

        answer = wait_until(born, "there is a coordinator")
        assert answer is not None
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str) -> int:
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        answer = self.raw.request(asked, AddPartitionsToTxnResponse, 3)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def batch(self, topic: str, *values: bytes, epoch: int | None = None) -> bytes:
        return build_batch(
            [record(value) for value in values],
            producer_id=ProducerId(self.id),
            producer_epoch=ProducerEpoch(self.epoch if epoch is None else epoch),
            base_sequence=self.sequences.get(topic, 0),
            transactional=True,
        )

    def send(self, topic: str, data: bytes) -> ProduceResponsePartition:
        """Once, whatever is answered."""
        request = produce_request(topic, data)
        request.transactional_id = self.name
        return self.raw.request(request, ProduceResponse, self.version).topics[0].partitions[0]

    def write(self, topic: str, *values: bytes) -> int:
        """As part of the transaction; the first offset."""
        if self.version == V1:
            codes: list[int] = []

            def is_added() -> bool:
                codes.append(self.add(topic))
                return codes[-1] != ErrorCode.CONCURRENT_TRANSACTIONS

            wait_until(is_added, "the transaction before is over")
            assert codes[-1] == ErrorCode.NONE
        data = self.batch(topic, *values)

        def answered() -> ProduceResponsePartition | None:
            answer = self.send(topic, data)
            return None if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS else answer

        answer = wait_until(answered, "the transaction before is over")
        assert answer is not None
        assert answer.error_code == ErrorCode.NONE, answer
        self.sequences[topic] = self.sequences.get(topic, 0) + len(values)
        return answer.base_offset

    def end(self, *, commits: bool) -> None:
        asked = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        answer = self.raw.request(asked, EndTxnResponse, 5 if self.version == V2 else 4)
        assert answer.error_code == ErrorCode.NONE, answer
        if self.version == V2:
            assert (answer.producer_id, answer.producer_epoch) == (self.id, self.epoch + 1)
            self.epoch = answer.producer_epoch
            self.sequences.clear()


@pytest.fixture
def topic(raw: RawClient, new_name: Callable[[str], str]) -> str:
    """One partition, one segment: markers bear the broker's time, far from that of the records."""
    return raw.create_well(new_name("topic"), segment_ms=str(2**62))


def read(raw: RawClient, topic: str, offset: int = 0, **options: int) -> FetchResponsePartition:
    answer = raw.fetch(topic, offset, isolation_level=COMMITTED, **options)
    assert answer.error_code == ErrorCode.NONE
    return answer


def wait_stable(raw: RawClient, topic: str, offset: int) -> None:
    """Markers come a moment after the answer to EndTxn."""
    wait_until(
        lambda: raw.list_offset(topic, LATEST, isolation=COMMITTED).offset >= offset,
        f"the last stable offset is {offset}",
    )


def producers(raw: RawClient, topic: str) -> dict[int, ProducerState]:
    asked = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name=topic, partition_indexes=[0])]
    )
    answer = raw.request(asked, DescribeProducersResponse).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return {each.producer_id: each for each in answer.active_producers}


@pytest.mark.parametrize("version", [V1, V2])
def test_19_markers_take_up_offsets_and_say_how_a_transaction_ended(
    raw: RawClient, topic: str, new_name: Callable[[str], str], version: int
) -> None:
    producer = Transactional(raw, new_name("tx"), version=version)
    for number, commits in enumerate((True, False)):
        assert producer.write(topic, b"a", b"b") == number * 3
        producer.end(commits=commits)
        wait_stable(raw, topic, number * 3 + 3)
    found = batches(raw.fetch(topic, 0).records)
    headers = [read_header(each) for each in found]
    assert [header.is_control for header in headers] == [False, True, False, True]
    ends = [read_end_marker(each) for each in found[1::2]]
    assert [end is not None and end.is_commit for end in ends] == [True, False]
    assert raw.produce_well(topic, b"next") == 6


@pytest.mark.parametrize("version", [V1, V2])
def test_20_what_is_not_stable_is_not_read_and_what_was_aborted_is_listed(
    raw: RawClient, topic: str, new_name: Callable[[str], str], version: int
) -> None:
    first = Transactional(raw, new_name("tx"), version=version)
    second = Transactional(raw, new_name("tx"), version=version)
    raw.produce_well(topic, b"plain")
    assert first.write(topic, b"a") == 1
    assert second.write(topic, b"b") == 2
    raw.produce_well(topic, b"plain")
    answer = read(raw, topic)
    assert (answer.high_watermark, answer.last_stable_offset) == (4, 1)
    assert (answer.aborted_transactions, len(records(answer.records))) == ([], 1)
    second.end(commits=False)
    # The first is older, and still open.
    assert len(records(raw.fetch(topic, 0).records)) >= 4
    assert read(raw, topic).last_stable_offset == 1
    first.end(commits=True)
    wait_stable(raw, topic, 6)
    answer = read(raw, topic)
    assert (answer.high_watermark, answer.last_stable_offset) == (6, 6)
    assert answer.aborted_transactions is not None
    listed = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
    assert listed == [(second.id, 2)]
    assert raw.fetch(topic, 0).aborted_transactions is None


def test_20_a_consumer_that_waits_is_woken_by_the_end_of_a_transaction(
    broker: Broker, raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    producer = Transactional(raw, new_name("tx"), version=V2)
    producer.write(topic, b"a")
    with RawClient(broker.host, broker.port) as other:
        waiting = asyncio.run(_read_while(other, topic, lambda: producer.end(commits=True)))
    assert records(waiting.records)[0].value == b"a"


async def _read_while(
    raw: RawClient, topic: str, action: Callable[[], None]
) -> FetchResponsePartition:
    # Longer than the connection waits for an answer: if nobody wakes it, that fails.
    wait_ms = int(raw.timeout_seconds * 2000)
    reading = asyncio.create_task(asyncio.to_thread(read, raw, topic, wait_ms=wait_ms))
    await asyncio.sleep(0.2)
    assert not reading.done()
    await asyncio.to_thread(action)
    return await reading


def test_15_the_latest_offset_of_one_who_reads_committed_is_the_last_stable_one(
    raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    raw.produce_well(topic, b"plain")
    producer = Transactional(raw, new_name("tx"), version=V1)
    producer.write(topic, b"a", b"b")
    assert raw.list_offset(topic, LATEST).offset == 3
    assert raw.list_offset(topic, LATEST, isolation=COMMITTED).offset == 1
    producer.end(commits=True)
    wait_stable(raw, topic, 4)
    assert raw.list_offset(topic, LATEST, isolation=COMMITTED).offset == 4


def test_a_batch_that_comes_after_its_transaction_opens_none(
    raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    producer = Transactional(raw, new_name("tx"), version=V1)
    producer.write(topic, b"a")
    producer.end(commits=True)
    wait_stable(raw, topic, 2)
    late = producer.send(topic, producer.batch(topic, b"late"))
    assert late.error_code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)
    assert read(raw, topic).last_stable_offset == 2


def test_with_rising_epochs_whatever_comes_late_is_refused(
    raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    producer = Transactional(raw, new_name("tx"), version=V2)
    producer.write(topic, b"a")
    late = producer.batch(topic, b"late")
    producer.end(commits=True)
    wait_stable(raw, topic, 2)
    assert producer.send(topic, late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    # Also into the next transaction, where it would be committed with it.
    producer.write(topic, b"b")
    assert producer.send(topic, late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.end(commits=True)
    wait_stable(raw, topic, 4)
    assert [each.value for each in records(read(raw, topic).records)][::2] == [b"a", b"b"]


def test_a_producer_that_was_not_added_is_refused(
    raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    producer = Transactional(raw, new_name("tx"), version=V1)
    answer = producer.send(topic, producer.batch(topic, b"a"))
    assert answer.error_code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)
    producer.name = "nobody"
    answer = producer.send(topic, producer.batch(topic, b"a"))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert raw.list_offset(topic, LATEST).offset == 0


def test_open_transactions_are_found_by_their_producers(
    raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    raw.produce_well(topic, b"plain")
    producer = Transactional(raw, new_name("tx"), version=V1)
    producer.write(topic, b"a", b"b")
    found = producers(raw, topic)[producer.id]
    assert (found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (0, 1, 1)
    producer.end(commits=False)
    wait_stable(raw, topic, 4)
    found = producers(raw, topic)[producer.id]
    assert found.current_txn_start_offset == -1
    assert found.coordinator_epoch >= 0


# ---- unmodified clients


def confluent_reads(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes]] = []

    while len(found) < count:
        message: Any = consumer.poll(wait_seconds_max())
        assert message is not None, f"{len(found)} of {count} came"
        if message.error() is None:
            found.append((message.offset(), message.value()))
    consumer.close()
    return found


def kafka_python_reads(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None
    )
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[tuple[int, bytes]] = []

    def has_all() -> bool:
        for messages in consumer.poll(timeout_ms=500).values():
            found.extend((message.offset, message.value) for message in messages)
        return len(found) >= count

    wait_until(has_all, f"{count} messages are read", describe=lambda: found)
    consumer.close()
    return found


def aiokafka_reads(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes]]:
    async def run() -> list[tuple[int, bytes]]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed"
        )
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            found: list[tuple[int, bytes]] = []
            async with asyncio.timeout(wait_seconds_max()):
                while len(found) < count:
                    for messages in (await consumer.getmany(timeout_ms=500)).values():
                        found += [(message.offset, message.value) for message in messages]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(run())


def test_clients_read_what_was_committed_and_nothing_else(
    broker: Broker, raw: RawClient, topic: str, new_name: Callable[[str], str]
) -> None:
    writers = [Transactional(raw, new_name("tx"), version=V1 + number % 2) for number in range(4)]
    committed: list[tuple[int, bytes]] = []
    for turn in range(6):
        pending: list[list[tuple[int, bytes]]] = [[] for _ in writers]
        for part in range(3):
            for number, writer in enumerate(writers):
                if (turn + number + part) % 3:
                    value = b"%d/%d/%d" % (turn, number, part)
                    pending[number].append((writer.write(topic, value), value))
            plain = b"plain %d/%d" % (turn, part)
            committed.append((raw.produce_well(topic, plain), plain))
        # Not in the order in which they began.
        for number in (2, 0, 3, 1):
            commits = (turn + number) % 2 == 0
            writers[number].end(commits=commits)
            if commits:
                committed += pending[number]
    committed.sort()
    last = Transactional(raw, new_name("tx"), version=V2)
    last.write(topic, b"never ends")
    end = raw.list_offset(topic, LATEST).offset - 1
    wait_stable(raw, topic, end)
    for reads in (confluent_reads, kafka_python_reads, aiokafka_reads):
        assert reads(broker.bootstrap, topic, len(committed)) == committed, reads.__name__
    last.end(commits=False)
