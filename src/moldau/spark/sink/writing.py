"""Owns what a task does with its rows: partitions chosen, batches made, memory bounded.

Rows wait by partition until they make a batch of a good size. Full batches go out in rounds: while
one is on its way the next is made, so that at most two are in memory.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.sending import BATCHES_PER_PARTITION_MAX, Outgoing
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId
from moldau.records.murmur2 import partition_of
from moldau.records.record import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Record,
    build_batch,
)
from moldau.spark.sink.columns import Headers, Row
from moldau.spark.sink.write_options import REQUEST_BYTES, WriteOptions

ROUND_BYTES_MAX: Final = 8 * 1024 * 1024
_RECORD_BYTES: Final = 24
"""Of a record beside its key, value and headers, at most, and of a header."""
_SEQUENCE_END: Final = 2**31
_OFFSET: Final = Offset(0)
# What a NamedTuple's own constructor does, without its call.
_new_record: Final = tuple.__new__


class Producer(NamedTuple):
    """As whom batches are written."""

    id: int
    epoch: int
    is_transactional: bool


class Outlet(Protocol):
    """Where batches go. Opened when there is something to write."""

    def producer(self, topic: str, partition: int) -> Producer | None:
        """As whom to write there; None without idempotence."""
        ...

    def partition_count(self, topic: str) -> int:
        """Raises NotFoundError."""
        ...

    def post(self, batches: list[Outgoing]) -> None:
        """Send a round, once the one before is stored."""
        ...

    def settle(self) -> None:
        """Wait until everything is stored."""
        ...


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


class RowWriter:
    """Writes rows to an outlet. One for each attempt of a task."""

    def __init__(self, options: WriteOptions, outlet: Outlet) -> None:
        self._options = options
        self._outlet = outlet
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._counts: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        """The partition by topic to which rows without a key go until a batch is full."""
        self._waiting_bytes = 0
        self._round: list[Outgoing] = []
        self._round_bytes = 0
        self.row_count = 0

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
            waiting = self._place(topic, self._partition(topic, key, partition))
            size = _RECORD_BYTES + len(key or b"") + len(value or b"")
            if headers:
                size += _headers_size(headers)
            if waiting.bytes + size > bytes_max:
                self._check_size(topic, size)
                if waiting.records:
                    self._cut(waiting)
                    if key is None and partition is None:
                        waiting = self._place(topic, self._sticky[topic])
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
        self._outlet.settle()

    # -- how

    def _place(self, topic: str, partition: int) -> _Waiting:
        found = self._waiting.get((topic, partition))
        if found is None:
            found = self._waiting[topic, partition] = _Waiting(topic, partition)
        return found

    def _check_size(self, topic: str, size: int) -> None:
        size_max = self._options.request_bytes_max
        if size > size_max:
            raise InvalidArgumentError(
                f"a message of {size} bytes for {topic} is larger than option {REQUEST_BYTES} "
                f"({size_max})"
            )

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

    def _count_of(self, topic: str) -> int:
        said = "option topic" if self._options.topic is not None else "column topic"
        try:
            return self._outlet.partition_count(topic)
        except NotFoundError:
            raise NotFoundError(
                f"there is no topic {topic}: see {said}",
                hint=f"create it first: moldau topic create {topic}",
            ) from None
        except RejectedError as error:
            if error.code != ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise
            raise InvalidArgumentError(f"no topic can be called {topic!r}: see {said}") from None

    def _cut(self, waiting: _Waiting) -> None:
        """Make a batch of what waits for a partition."""
        if waiting.batches >= BATCHES_PER_PARTITION_MAX:
            self._send_round()
        producer = self._outlet.producer(waiting.topic, waiting.partition)
        records = waiting.records
        data = build_batch(
            records,
            codec=self._options.codec,
            producer_id=NO_PRODUCER_ID if producer is None else ProducerId(producer.id),
            producer_epoch=NO_PRODUCER_EPOCH if producer is None else ProducerEpoch(producer.epoch),
            base_sequence=NO_SEQUENCE if producer is None else waiting.sequence,
            transactional=producer is not None and producer.is_transactional,
        )
        self._round.append(Outgoing(waiting.topic, waiting.partition, data))
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
            self._outlet.post(made)


def write_all(
    writer: RowWriter, batches: Iterator[Any], rows_of: Callable[[Any], Iterable[Row]]
) -> bool:
    """All rows of Spark's batches; whether there were any."""
    for batch in batches:
        try:
            writer.write(rows_of(batch))
        except UnicodeEncodeError as error:
            raise ClientError(f"a name of a header is no text: {error}") from error
    writer.finish()
    return writer.row_count > 0


def _headers_size(headers: Headers) -> int:
    return sum(_RECORD_BYTES + len(name) * 4 + len(value or b"") for name, value in headers)
