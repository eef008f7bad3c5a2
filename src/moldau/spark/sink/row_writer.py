"""Writes the rows of a task: chooses partitions, builds record batches and sends them.

Rows are buffered by partition until they fill a batch. Full batches are sent in rounds: while one
is in flight the next is built, so that at most two are in memory.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.retry import retry
from moldau.client.wire.batch_sender import BATCHES_PER_PARTITION_MAX, BatchSender, OutgoingBatch
from moldau.client.wire.transactions import TransactionalProducer, check
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch
from moldau.spark.compacted_topic import just_created
from moldau.spark.sink.columns import Row, rows_of
from moldau.spark.sink.protocol import Begin
from moldau.spark.sink.sink_client import PartitionKey, SinkClient
from moldau.spark.sink.write_options import REQUEST_BYTES, WriteOptions
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

ROUND_BYTES_MAX: Final = 8 * 1024 * 1024
_RECORD_BYTES: Final = 24
"""Upper limit of the overhead of a record, and of a header."""
_SEQUENCE_END: Final = 2**31
_OFFSET: Final = Offset(0)
# The constructor of a NamedTuple without the overhead of its call.
_new_record: Final = tuple.__new__

T = TypeVar("T")


@dataclass(slots=True)
class _Buffer:
    """The rows of a partition that are not in a batch yet."""

    topic: str
    partition: int
    records: list[Record] = field(default_factory=list)
    bytes: int = 0
    sequence: int = 0
    batches: int = 0
    """In the current round."""


class _Buffers(dict[PartitionKey, _Buffer]):
    def __missing__(self, key: PartitionKey) -> _Buffer:
        return self.setdefault(key, _Buffer(*key))


class RowWriter:
    """Writes the rows of one task attempt, in the transaction of `begin` if it is given.

    A batch whose response is lost is stored only once: the producer is idempotent.
    """

    def __init__(self, options: WriteOptions, sink: SinkClient, begin: Begin | None = None) -> None:
        self._options = options
        self._sink = sink
        self._client = sink.data
        self._begin = begin
        self._buffers = _Buffers()
        self._buffered_bytes = 0
        self._counts: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        """By topic, the partition for rows without a key until its batch is full."""
        self._round: list[OutgoingBatch] = []
        self._round_bytes = 0
        self._producer: TransactionalProducer | None = None
        self._sender: BatchSender | None = None
        self._added: set[PartitionKey] = set()
        """Partitions of the transaction."""
        self._created: set[str] = set()
        """Topics that this task created."""
        self.row_count = 0

    def write_all(self, batches: Iterable[Any]) -> bool:
        """Stores all rows of Spark's batches; returns whether there were any."""
        try:
            for batch in batches:
                self.write(rows_of(batch, takes_timestamps=self._options.takes_timestamps))
            self.finish()
        except BaseException:
            if self._sender is not None:
                # Connections are shared: leave no pending responses in them.
                self._sender.drop()
            raise
        return self.row_count > 0

    def write(self, rows: Iterable[Row]) -> None:
        """Raises InvalidArgumentError for an invalid row, and ClientError."""
        now_ms = time.time_ns() // 1_000_000
        option_topic = self._options.topic
        bytes_max = self._options.batch_bytes_max
        buffered_max = self._options.buffer_bytes_max // 2
        # The hot loop: no unnecessary calls or attribute lookups.
        for key, value, headers, row_topic, partition, time_ms in rows:
            topic = row_topic if option_topic is None else option_topic
            if not topic:
                raise InvalidArgumentError(
                    "column topic is null in a row, and option topic is not set"
                )
            buffer = self._buffers[topic, self._partition(topic, key, partition)]
            size = _RECORD_BYTES + len(key or b"") + len(value or b"")
            for name, content in headers:
                size += _RECORD_BYTES + len(name) * 4 + len(content or b"")
            if buffer.bytes + size > bytes_max:
                if size > self._options.request_bytes_max:
                    raise InvalidArgumentError(
                        f"a row of {size} bytes for {topic} exceeds the limit of option "
                        f"{REQUEST_BYTES} ({self._options.request_bytes_max})"
                    )
                if buffer.records:
                    self._build_batch(buffer)
                    if key is None and partition is None:
                        buffer = self._buffers[topic, self._sticky[topic]]
            stamp = now_ms if time_ms is None else time_ms
            buffer.records.append(_new_record(Record, (_OFFSET, stamp, key, value, headers)))
            buffer.bytes += size
            self._buffered_bytes += size
            self.row_count += 1
            if self._buffered_bytes > buffered_max:
                # Many partitions with few rows each: small batches save memory.
                self.flush()

    def flush(self) -> None:
        for buffer in self._buffers.values():
            if buffer.records:
                self._build_batch(buffer)
        self._send_round()

    def finish(self) -> None:
        """Sends the rest and waits until all of it is stored."""
        self.flush()
        self._wait_for_acks()

    # -- batches

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._count_of(topic)
            # Small micro-batches never fill a batch: all would start at the same partition.
            self._sticky[topic] = random.randrange(count)
        if partition is not None:
            if not 0 <= partition < count:
                raise InvalidArgumentError(
                    f"column partition is {partition}, but {topic} has partitions 0 to {count - 1}",
                    hint='to choose partitions by key: .drop("partition")',
                )
            return partition
        if key is not None:
            return partition_of(key, count)
        return self._sticky[topic]

    def _build_batch(self, buffer: _Buffer) -> None:
        """Builds a record batch of the buffered rows of a partition."""
        if buffer.batches >= BATCHES_PER_PARTITION_MAX:
            self._send_round()
        producer = self._producer_for((buffer.topic, buffer.partition))
        records = buffer.records
        data = build_batch(
            records,
            codec=self._options.codec,
            producer_id=ProducerId(producer.producer_id),
            producer_epoch=ProducerEpoch(producer.epoch),
            base_sequence=buffer.sequence,
            transactional=bool(producer.name),
        )
        self._round.append(OutgoingBatch(buffer.topic, buffer.partition, data))
        self._round_bytes += len(data)
        buffer.batches += 1
        buffer.sequence = (buffer.sequence + len(records)) % _SEQUENCE_END
        self._buffered_bytes -= buffer.bytes
        buffer.records, buffer.bytes = [], 0
        if buffer.partition == self._sticky[buffer.topic]:
            # The next rows without a key go to the next partition.
            count = self._counts[buffer.topic]
            self._sticky[buffer.topic] = (buffer.partition + 1) % count
        if self._round_bytes >= min(ROUND_BYTES_MAX, self._options.buffer_bytes_max // 4):
            self._send_round()

    def _send_round(self) -> None:
        batches, self._round, self._round_bytes = self._round, [], 0
        for buffer in self._buffers.values():
            buffer.batches = 0
        if batches:
            self._send(batches)

    # -- brokers

    def _count_of(self, topic: str) -> int:
        source = "option topic" if self._options.topic is not None else "column topic"
        # The connection must have no batches in flight.
        self._wait_for_acks()
        try:
            return self._retry(partial(self._find_topic, topic), topic, f"find topic {topic}")
        except NotFoundError:
            raise NotFoundError(
                f"unknown topic {topic}: see {source}",
                hint=f"create it first: moldau topic create {topic}",
            ) from None
        except RejectedError as error:
            if error.code != ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise
            raise InvalidArgumentError(
                f"{topic!r} is not a valid topic name: see {source}"
            ) from None

    def _find_topic(self, topic: str) -> int:
        """Creates a missing topic, if brokers allow auto-creation."""
        try:
            return len(self._client.layout(topic).leaders)
        except NotFoundError:
            if topic not in self._created:
                (found,) = self._client.metadata(topic, create=True).topics
                if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if found.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                    check(found.error_code, f"create topic {topic}")
                self._created.add(topic)
            raise just_created(topic) from None

    def _producer_for(self, key: PartitionKey) -> TransactionalProducer:
        """The producer, without a name if not in a transaction. `key` is written to first."""
        if self._producer is None:
            if self._begin is not None:
                self._producer = self._begin(key)
            else:
                self._producer = self._retry(self._init_producer, key[0], "get a producer id")
        return self._producer

    def _init_producer(self) -> TransactionalProducer:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        found = self._client.any_broker().request(request, InitProducerIdResponse)
        check(found.error_code, "get a producer id")
        return TransactionalProducer("", found.producer_id, found.producer_epoch)

    def _send(self, batches: list[OutgoingBatch]) -> None:
        """Sends a round as soon as the previous one is stored."""
        producer = self._producer_for(batches[0][:2])
        if producer.name:
            self._add_partitions(producer, batches)
        if self._sender is None:
            self._sender = BatchSender(
                self._client,
                transactional_id=producer.name or None,
                request_bytes_max=self._options.request_bytes_max,
                seconds_max=self._options.timeout_seconds,
            )
        self._sender.post(batches)

    def _add_partitions(
        self, producer: TransactionalProducer, batches: Iterable[OutgoingBatch]
    ) -> None:
        """A partition must be in the transaction before anything is written to it."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in {(batch.topic, batch.partition) for batch in batches}:
            if (topic, partition) not in self._added:
                by_topic[topic].append(partition)

        def add(topic: str) -> None:
            try:
                self._sink.transactions.add_partitions(producer, {topic: by_topic[topic]})
            except RejectedError as error:
                is_unknown = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_unknown and topic in self._created:
                    raise just_created(topic) from error
                raise

        for topic in by_topic:
            self._retry(partial(add, topic), topic, f"write to {topic}")
            self._added |= {(topic, partition) for partition in by_topic[topic]}

    def _wait_for_acks(self) -> None:
        if self._sender is not None:
            self._sender.settle()

    def _retry(self, attempt: Callable[[], T], topic: str, doing: str) -> T:
        return retry(
            attempt,
            forget=partial(self._client.forget, topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )
