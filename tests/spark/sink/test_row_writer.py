"""Rows become batches: where they go, how large they get, what cannot be written."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.wire.batch_sender import BATCHES_PER_PARTITION_MAX, OutgoingBatch
from moldau.client.wire.transactions import TransactionalProducer
from moldau.records.batch import read_header
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, read_records
from moldau.spark.sink.columns import Row
from moldau.spark.sink.row_writer import RowWriter
from moldau.spark.sink.write_options import WriteOptions, parse_write_options

pytestmark = pytest.mark.inprocess


class Topics:
    """Keeps what is sent, round by round."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.rounds: list[list[OutgoingBatch]] = []
        self.is_transactional = True

    @property
    def sent(self) -> list[OutgoingBatch]:
        return [batch for batches in self.rounds for batch in batches]

    def records(self, topic: str, partition: int) -> list[Record]:
        return [
            record
            for batch in self.sent
            if (batch.topic, batch.partition) == (topic, partition)
            for record in read_records(batch.data)
        ]


class Writer(RowWriter):
    """Writes to `topics` in place of brokers."""

    def __init__(self, options: WriteOptions, topics: Topics) -> None:
        client: Any = SimpleNamespace(data=None)
        super().__init__(options, client)
        self.topics = topics

    def _find_topic(self, topic: str) -> int:
        if topic not in self.topics.counts:
            raise NotFoundError("no")
        return self.topics.counts[topic]

    def _retry(self, attempt: Callable[[], Any], topic: str, doing: str) -> Any:
        return attempt()

    def _producer_for(self, key: tuple[str, int]) -> TransactionalProducer:
        return TransactionalProducer("t" if self.topics.is_transactional else "", 7, 3)

    def _send(self, batches: list[OutgoingBatch]) -> None:
        self.topics.rounds.append(batches)


def row(
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    topic: str | None = None,
    partition: int | None = None,
    time_ms: int | None = None,
) -> Row:
    return Row(key, value, [], topic, partition, time_ms)


def write(topics: Topics, rows: Iterable[Row], **options: str) -> RowWriter:
    asked = {"kafka.bootstrap.servers": "localhost:1", **options}
    writer = Writer(parse_write_options(asked, streaming=True), topics)
    writer.write(rows)
    writer.finish()
    return writer


def test_keys_go_where_kafka_puts_them_and_partitions_where_the_column_says() -> None:
    topics = Topics(a=5)
    keys = [b"k%d" % n for n in range(100)]
    write(topics, [row(key=key) for key in keys] + [row(b"p", key=b"k0", partition=4)], topic="a")
    for partition in range(5):
        wanted = [key for key in keys if partition_of(key, 5) == partition]
        found = [record.key for record in topics.records("a", partition)]
        assert found == [*wanted, b"k0"][: len(wanted) + (partition == 4)]


def test_rows_without_a_key_fill_one_batch_after_another() -> None:
    topics = Topics(a=3)
    options = {"topic": "a", "kafka.batch.size": "1024"}
    write(topics, [row(b"x" * 400) for _ in range(10)], **options)
    first = topics.sent[0].partition
    assert [batch.partition for batch in topics.sent] == [(first + n) % 3 for n in range(5)]


def test_single_rows_without_a_key_reach_all_partitions() -> None:
    """Each micro-batch has a writer of its own, and is too small to fill a batch."""
    topics = Topics(a=3)
    for _ in range(100):
        write(topics, [row()], topic="a")
    assert {batch.partition for batch in topics.sent} == {0, 1, 2}


def test_sequences_go_on_and_batches_are_of_the_transaction() -> None:
    topics = Topics(a=1)
    options = {"topic": "a", "kafka.batch.size": "1024"}
    write(topics, [row(b"x" * 400) for _ in range(10)], **options)
    headers = [read_header(batch.data) for batch in topics.sent]
    assert [header.base_sequence for header in headers] == [0, 2, 4, 6, 8]
    assert all(header.is_transactional for header in headers)
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(7, 3)}
    topics = Topics(a=1)
    topics.is_transactional = False
    write(topics, [row()], topic="a")
    header = read_header(topics.sent[0].data)
    assert (header.is_transactional, header.producer_id, header.base_sequence) == (False, 7, 0)


def test_a_round_holds_few_batches_of_a_partition_and_bounded_memory() -> None:
    topics = Topics(a=1, b=200)
    write(topics, [row(b"x" * 900) for _ in range(40)], topic="a", **{"kafka.batch.size": "1024"})
    assert max(len(batches) for batches in topics.rounds) <= BATCHES_PER_PARTITION_MAX
    topics = Topics(b=200)
    rows = (row(b"x" * 100, partition=n % 200) for n in range(5000))
    write(topics, rows, topic="b", **{"kafka.buffer.memory": "40000"})
    assert len(topics.rounds) > 20
    assert sum(len(topics.records("b", p)) for p in range(200)) == 5000
    assert all(sum(len(batch.data) for batch in sent) <= 60_000 for sent in topics.rounds)


def test_topics_come_from_the_option_or_from_the_column() -> None:
    topics = Topics(a=1, b=1)
    write(topics, [row(b"1", topic="a"), row(b"2", topic="b")])
    assert [record.value for record in topics.records("a", 0)] == [b"1"]
    assert [record.value for record in topics.records("b", 0)] == [b"2"]
    topics = Topics(a=1, b=1)
    write(topics, [row(topic="a")], topic="b")
    assert len(topics.records("b", 0)) == 1


def test_times_are_those_of_the_column() -> None:
    topics = Topics(a=1)
    write(topics, [row(time_ms=-5), row(time_ms=1_700_000_000_000), row()], topic="a")
    times = [record.timestamp for record in topics.records("a", 0)]
    assert times[:2] == [-5, 1_700_000_000_000]
    assert times[2] > 1_700_000_000_000


def test_nothing_is_sent_for_no_rows() -> None:
    topics = Topics(a=1)
    assert write(topics, [], topic="a").row_count == 0
    assert topics.rounds == []


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([row()], {}, "column topic is null"),
        (
            [row(partition=3)],
            {"topic": "a"},
            "column partition is 3, but a has partitions 0 to 2",
        ),
        ([row(partition=-1)], {"topic": "a"}, "column partition is -1"),
        ([row()], {"topic": "z"}, "unknown topic z: see option topic"),
        ([row(topic="z")], {}, "unknown topic z: see column topic"),
        (
            [row(b"x" * 3000)],
            {"topic": "a", "kafka.max.request.size": "2000"},
            "exceeds the limit of option kafka.max.request.size",
        ),
    ],
)
def test_a_row_that_cannot_be_written_says_why(
    rows: list[Row], options: dict[str, str], message: str
) -> None:
    with pytest.raises((InvalidArgumentError, NotFoundError), match=message):
        write(Topics(a=3), rows, **options)
