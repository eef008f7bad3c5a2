"""Responsible for what a task does with its rows: partitions chosen, batches made and sent.

Rows wait by partition until they make a batch of a good size. Full batches go out in rounds: while
one is on its way the next is made, so that at most two are in memory.
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
from moldau.spark.sink.sink_client import Place, SinkClient
from moldau.spark.sink.write_options import REQUEST_BYTES, WriteOptions
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

ROUND_BYTES_MAX: Final = 8 * 1024 * 1024
_RECORD_BYTES: Final = 24
"""Of a record beside its key, value and headers, at most, and of a header."""
_SEQUENCE_END: Final = 2**31
_OFFSET: Final = Offset(0)
# What a NamedTuple's own constructor does, without its call.
_new_record: Final = tuple.__new__

T = TypeVar("T")


@dataclass(slots=True)
class _Waiting:
    """The rows of a partition that no batch was made of yet."""

    topic: str
    partition: int
    records: list[Record] = field(default_factory=list)
    bytes: int = 0
    sequence: int = 0
    batches: int = 0
    """In the round that is being made."""


class _Places(dict[tuple[str, int], _Waiting]):
    def __missing__(self, place: tuple[str, int]) -> _Waiting:
        return self.setdefault(place, _Waiting(*place))


class RowWriter:
    """Writes rows into the transaction that `begin` gives, or, without one, to the topics at once.

    A batch whose answer is lost is stored once all the same. One for each attempt of a task.
    """

    def __init__(self, options: WriteOptions, port: SinkClient, begin: Begin | None = None) -> None:
        self._options = options
        self._port = port
        self._client = port.data
        self._begin = begin
        self._waiting = _Places()
        self._waiting_bytes = 0
        self._counts: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        """The partition by topic to which rows without a key go until a batch is full."""
        self._round: list[OutgoingBatch] = []
        self._round_bytes = 0
        self._producer: TransactionalProducer | None = None
        self._sender: BatchSender | None = None
        self._entered: set[tuple[str, int]] = set()
        """Partitions that are in the transaction."""
        self._created: set[str] = set()
        """Topics that were not there."""
        self.row_count = 0

    def write_all(self, batches: Iterable[Any]) -> bool:
        """Store all rows of Spark's batches; whether there were any."""
        try:
            for batch in batches:
                self.write(rows_of(batch, takes_timestamps=self._options.takes_timestamps))
            self.finish()
        except BaseException:
            if self._sender is not None:
                # Leave no answers on their way in connections that others use.
                self._sender.drop()
            raise
        return self.row_count > 0

    def write(self, rows: Iterable[Row]) -> None:
        """Raises InvalidArgumentError for a row that cannot be written, and ClientError."""
        now_ms = time.time_ns() // 1_000_000
        option_topic = self._options.topic
        bytes_max = self._options.batch_bytes_max
        waiting_max = self._options.buffer_bytes_max // 2
        # Most time goes by here: no call that is not needed, no attribute that is looked up twice.
        for key, value, headers, row_topic, partition, time_ms in rows:
            topic = row_topic if option_topic is None else option_topic
            if not topic:
                raise InvalidArgumentError(
                    "column topic is null in a row, and there is no option topic to take instead"
                )
            waiting = self._waiting[topic, self._partition(topic, key, partition)]
            size = _RECORD_BYTES + len(key or b"") + len(value or b"")
            for name, content in headers:
                size += _RECORD_BYTES + len(name) * 4 + len(content or b"")
            if waiting.bytes + size > bytes_max:
                if size > self._options.request_bytes_max:
                    raise InvalidArgumentError(
                        f"a message of {size} bytes for {topic} is larger than option "
                        f"{REQUEST_BYTES} ({self._options.request_bytes_max})"
                    )
                if waiting.records:
                    self._cut(waiting)
                    if key is None and partition is None:
                        waiting = self._waiting[topic, self._sticky[topic]]
            stamp = now_ms if time_ms is None else time_ms
            waiting.records.append(_new_record(Record, (_OFFSET, stamp, key, value, headers)))
            waiting.bytes += size
            self._waiting_bytes += size
            self.row_count += 1
            if self._waiting_bytes > waiting_max:
                # Many partitions, each with a little: better small batches than no memory.
                self.flush()

    def flush(self) -> None:
        """Send what waits, whatever its size."""
        for waiting in self._waiting.values():
            if waiting.records:
                self._cut(waiting)
        self._send_round()

    def finish(self) -> None:
        """Send the rest and wait until all of it is stored."""
        self.flush()
        self._settle()

    # -- batches

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._count_of(topic)
            # Small micro-batches never fill a batch: all would begin at the same partition.
            self._sticky[topic] = random.randrange(count)
        if partition is not None:
            if not 0 <= partition < count:
                raise InvalidArgumentError(
                    f"column partition says {partition}, but {topic} has partitions 0 to "
                    f"{count - 1}",
                    hint='leave the partition to the key: .drop("partition")',
                )
            return partition
        if key is not None:
            return partition_of(key, count)
        return self._sticky[topic]

    def _cut(self, waiting: _Waiting) -> None:
        """Make a batch of what waits for a partition."""
        if waiting.batches >= BATCHES_PER_PARTITION_MAX:
            self._send_round()
        producer = self._as_whom((waiting.topic, waiting.partition))
        records = waiting.records
        data = build_batch(
            records,
            codec=self._options.codec,
            producer_id=ProducerId(producer.producer_id),
            producer_epoch=ProducerEpoch(producer.epoch),
            base_sequence=waiting.sequence,
            transactional=bool(producer.name),
        )
        self._round.append(OutgoingBatch(waiting.topic, waiting.partition, data))
        self._round_bytes += len(data)
        waiting.batches += 1
        waiting.sequence = (waiting.sequence + len(records)) % _SEQUENCE_END
        self._waiting_bytes -= waiting.bytes
        waiting.records, waiting.bytes = [], 0
        if waiting.partition == self._sticky[waiting.topic]:
            # The next rows without a key go elsewhere.
            count = self._counts[waiting.topic]
            self._sticky[waiting.topic] = (waiting.partition + 1) % count
        if self._round_bytes >= min(ROUND_BYTES_MAX, self._options.buffer_bytes_max // 4):
            self._send_round()

    def _send_round(self) -> None:
        made, self._round, self._round_bytes = self._round, [], 0
        for waiting in self._waiting.values():
            waiting.batches = 0
        if made:
            self._post(made)

    # -- brokers

    def _count_of(self, topic: str) -> int:
        """How many partitions a topic has."""
        said = "option topic" if self._options.topic is not None else "column topic"
        # Batches may be on their way over the connection that is asked.
        self._settle()
        try:
            return self._patiently(partial(self._look_for, topic), topic, f"find topic {topic}")
        except NotFoundError:
            raise NotFoundError(
                f"there is no topic {topic}: see {said}",
                hint=f"create it first: moldau topic create {topic}",
            ) from None
        except RejectedError as error:
            if error.code != ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise
            raise InvalidArgumentError(f"no topic can be called {topic!r}: see {said}") from None

    def _look_for(self, topic: str) -> int:
        """A topic that is not there is created, if brokers do that."""
        try:
            return len(self._client.layout(topic).leaders)
        except NotFoundError:
            if topic not in self._created:
                (answer,) = self._client.metadata(topic, create=True).topics
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if answer.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                    check(answer.error_code, f"create topic {topic}")
                self._created.add(topic)
            raise just_created(topic) from None

    def _as_whom(self, place: Place) -> TransactionalProducer:
        """Who writes; without a name if not in a transaction. `place` is written to first."""
        if self._producer is None:
            if self._begin is not None:
                self._producer = self._begin(place)
            else:
                self._producer = self._patiently(self._ask, place[0], "get a producer id")
        return self._producer

    def _ask(self) -> TransactionalProducer:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        found = self._client.any_broker().ask(request, InitProducerIdResponse)
        check(found.error_code, "get a producer id")
        return TransactionalProducer("", found.producer_id, found.producer_epoch)

    def _post(self, batches: list[OutgoingBatch]) -> None:
        """Send a round, once the one before is stored."""
        producer = self._as_whom(batches[0][:2])
        if producer.name:
            self._enter(producer, batches)
        if self._sender is None:
            self._sender = BatchSender(
                self._client,
                transactional_id=producer.name or None,
                request_bytes_max=self._options.request_bytes_max,
                seconds_max=self._options.timeout_seconds,
            )
        self._sender.post(batches)

    def _enter(self, producer: TransactionalProducer, batches: Iterable[OutgoingBatch]) -> None:
        """Each partition is entered into the transaction before anything is written to it."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in {(batch.topic, batch.partition) for batch in batches}:
            if (topic, partition) not in self._entered:
                by_topic[topic].append(partition)

        def enter(topic: str) -> None:
            try:
                self._port.transactions.add_partitions(producer, {topic: by_topic[topic]})
            except RejectedError as error:
                is_unknown = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_unknown and topic in self._created:
                    raise just_created(topic) from error
                raise

        for topic in by_topic:
            self._patiently(partial(enter, topic), topic, f"write to {topic}")
            self._entered |= {(topic, partition) for partition in by_topic[topic]}

    def _settle(self) -> None:
        """Wait until everything is stored."""
        if self._sender is not None:
            self._sender.settle()

    def _patiently(self, attempt: Callable[[], T], topic: str, doing: str) -> T:
        return retry(
            attempt,
            forget=partial(self._client.forget, topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )
