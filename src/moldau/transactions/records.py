"""The records of `__transaction_state`, in Kafka's format.

The key is a version and the transactional id; the value is the complete state of that id. Value
version 1 is written, which every Kafka since 3.5 reads; versions 0 and 1 are read. One tagged field
is Moldau's own, with a tag that Kafka's readers skip: the epoch before the last bump, which
identifies a retry after a crash.
"""

import struct
from collections import defaultdict
from enum import Enum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from moldau.model.errors import CorruptionError
from moldau.model.ids import (
    NO_TIMESTAMP,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.records.kafka_types import (
    Reader,
    compact_array,
    compact_string,
    tagged_fields_bytes,
    varint_bytes,
)
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

TEXT_BYTES_MAX: Final = 2**15 - 1
"""Limit of a transactional id in this format."""

_WHAT: Final = "transaction record"
_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
_TAG_PREVIOUS_ID: Final = 0
_TAG_NEXT_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2
_TAG_LAST_EPOCH: Final = 10_000
_TAGGED_BYTES: Final = {
    _TAG_PREVIOUS_ID: 8,
    _TAG_NEXT_ID: 8,
    _TAG_CLIENT_VERSION: 2,
    _TAG_LAST_EPOCH: 2,
}
_NO_TAGS: Final = b"\0"
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_CACHED_PARTITIONS_MAX: Final = 16


class TransactionState(Enum):
    """Names as in DescribeTransactions."""

    EMPTY = "Empty"
    """The producer has its id and epoch, and no transaction yet."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """Decided; markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition has its marker."""
    COMPLETE_ABORT = "CompleteAbort"

    def __init__(self, name: str) -> None:
        self.is_prepared: Final = name.startswith("Prepare")
        """Precomputed: read at every step of a transaction."""


_STATUSES: Final = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}
_STATES: Final = {status: state for state, status in _STATUSES.items()}


class StoredTransaction(Struct, frozen=True, kw_only=True):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before this one, if its producer may retry the request that bumped it."""
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The id before this one, whose epochs are exhausted."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The id after the transaction, if the epochs of this one are exhausted."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_at: TimestampMs = NO_TIMESTAMP
    updated_at: TimestampMs
    client_version: int = 0
    """2 for transactions V2: the epoch is bumped with every transaction (KIP-890)."""


class TransactionRecord(Struct, frozen=True, kw_only=True):
    """The state of a transactional id; None: deleted."""

    transactional_id: str
    value: StoredTransaction | None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended; a value of None is a tombstone."""
    name = record.transactional_id.encode()
    key = struct.pack(">hh", _KEY_VERSION, len(name)) + name
    return key, None if record.value is None else _encode_value(record.value)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record, or None for an unknown kind. Raises CorruptionError."""
    reader = Reader(key, _WHAT)
    if reader.int16() != _KEY_VERSION:
        return None
    transactional_id = reader.string()
    return TransactionRecord(
        transactional_id=transactional_id,
        value=None if value is None else _decode_value(Reader(value, _WHAT)),
    )


def _encode_value(value: StoredTransaction) -> bytes:
    head = _HEAD.pack(
        _VALUE_VERSION,
        value.producer_id,
        value.producer_epoch,
        value.timeout_ms,
        _STATUSES[value.state],
    )
    times = _TIMES.pack(value.updated_at, value.started_at)
    return head + _encode_partitions(value.partitions) + times + _encode_tagged(value)


def _encode_tagged(value: StoredTransaction) -> bytes:
    if (
        value.client_version == 0
        and value.previous_producer_id == value.next_producer_id == NO_PRODUCER_ID
        and value.last_epoch == NO_PRODUCER_EPOCH
    ):
        return _NO_TAGS
    tagged = [
        (tag, number.to_bytes(_TAGGED_BYTES[tag], "big", signed=True))
        for tag, number, default in (
            (_TAG_PREVIOUS_ID, value.previous_producer_id, NO_PRODUCER_ID),
            (_TAG_NEXT_ID, value.next_producer_id, NO_PRODUCER_ID),
            (_TAG_CLIENT_VERSION, value.client_version, 0),
            (_TAG_LAST_EPOCH, value.last_epoch, NO_PRODUCER_EPOCH),
        )
        if number != default
    ]
    return tagged_fields_bytes(tagged)


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    if len(partitions) > _CACHED_PARTITIONS_MAX:
        return _encode_any(partitions)
    return _encode_few(partitions)


@lru_cache(maxsize=1024)
def _encode_few(partitions: frozenset[TopicPartition]) -> bytes:
    """Cached: producers mostly reuse their partitions."""
    return _encode_any(partitions)


def _encode_any(partitions: frozenset[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        by_topic[topic].append(index)
    return compact_array(
        compact_string(topic)
        + varint_bytes(len(indexes) + 1)
        + struct.pack(f">{len(indexes)}i", *indexes)
        + _NO_TAGS
        for topic, indexes in by_topic.items()
    )


def _decode_value(reader: Reader) -> StoredTransaction:
    version = reader.version(_WHAT, _VALUE_VERSION)
    reader.flexible = version > 0
    producer_id, epoch = ProducerId(reader.int64()), ProducerEpoch(reader.int16())
    timeout_ms, status = reader.int32(), reader.int8()
    state = _STATES.get(status)
    if state is None:
        raise CorruptionError(f"transaction record has the unknown state {status}")
    partitions: set[TopicPartition] = set()
    for _ in range(reader.array_length(nullable=True)):
        topic = reader.string()
        partitions.update(
            TopicPartition(topic, PartitionIndex(reader.int32()))
            for _ in range(reader.array_length(nullable=True))
        )
        reader.tagged_fields()
    updated_at, started_at = TimestampMs(reader.int64()), TimestampMs(reader.int64())
    tagged = reader.tagged_fields()
    return StoredTransaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=ProducerEpoch(_tagged(tagged, _TAG_LAST_EPOCH, NO_PRODUCER_EPOCH)),
        previous_producer_id=ProducerId(_tagged(tagged, _TAG_PREVIOUS_ID, NO_PRODUCER_ID)),
        next_producer_id=ProducerId(_tagged(tagged, _TAG_NEXT_ID, NO_PRODUCER_ID)),
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        started_at=started_at,
        updated_at=updated_at,
        client_version=_tagged(tagged, _TAG_CLIENT_VERSION, 0),
    )


def _tagged(fields: dict[int, bytes], tag: int, default: int) -> int:
    data = fields.get(tag)
    if data is None:
        return default
    if len(data) != _TAGGED_BYTES[tag]:
        raise CorruptionError(f"transaction record has {len(data)} bytes in its field {tag}")
    return int.from_bytes(data, "big", signed=True)
