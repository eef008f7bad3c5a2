"""Owns the records of `__transaction_state`: their meaning, and Kafka's own bytes for them.

The key is a version and the transactional id; the value holds all there is to know of that id, so
the last record of a key is its state. Written is value version 1, which every Kafka since 3.5
reads; read are 0 and 1. One field is ours, in a tag far from Kafka's, whose readers skip it: the
epoch before the last rise, without which a retry after a crash could not be told from a stranger.
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

TEXT_BYTES_MAX: Final = 2**15 - 1
"""Longest transactional id that the format can hold."""
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
_TAG_PREVIOUS_ID: Final = 0
_TAG_NEXT_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2
_TAG_LAST_EPOCH: Final = 10_000
_NOTHING_TAGGED: Final = b"\0"
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_REMEMBERED_PARTITIONS_MAX: Final = 16


class TransactionState(Enum):
    """Where a transactional id stands. Names as DescribeTransactions spells them."""

    EMPTY = "Empty"
    """The producer has its id and epoch, and has begun nothing with them."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """Decided; the partitions are being told."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition has its marker."""
    COMPLETE_ABORT = "CompleteAbort"

    def __init__(self, name: str) -> None:
        self.is_prepared: Final = name.startswith("Prepare")
        """Asked for at every step of a transaction, so not worked out each time."""


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
    """All that is known of a transactional id."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before this one, if its owner may ask for this one again."""
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The id before this one, whose epochs were used up."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The id that takes over when the transaction has ended, because the epochs are used up."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_at: TimestampMs = NO_TIMESTAMP
    updated_at: TimestampMs
    client_version: int = 0
    """2 if the client's epoch rises with every transaction (KIP-890)."""


class TransactionRecord(Struct, frozen=True, kw_only=True):
    """The state of a transactional id; None: it is forgotten."""

    transactional_id: str
    value: StoredTransaction | None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended; a value of None is a tombstone."""
    name = record.transactional_id.encode()
    key = struct.pack(">hh", _KEY_VERSION, len(name)) + name
    return key, None if record.value is None else _encode_value(record.value)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record, or None for a kind that is unknown here. Raises CorruptionError."""
    reader = _Reader(key)
    if reader.number(2) != _KEY_VERSION:
        return None
    transactional_id = reader.text(reader.number(2))
    return TransactionRecord(
        transactional_id=transactional_id,
        value=None if value is None else _decode_value(_Reader(value)),
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
        return _NOTHING_TAGGED
    tagged = [
        (tag, number.to_bytes(size, "big", signed=True))
        for tag, number, size, unsaid in (
            (_TAG_PREVIOUS_ID, value.previous_producer_id, 8, NO_PRODUCER_ID),
            (_TAG_NEXT_ID, value.next_producer_id, 8, NO_PRODUCER_ID),
            (_TAG_CLIENT_VERSION, value.client_version, 2, 0),
            (_TAG_LAST_EPOCH, value.last_epoch, 2, NO_PRODUCER_EPOCH),
        )
        if number != unsaid
    ]
    parts = [_varint(len(tagged))]
    for tag, data in tagged:
        parts += (_varint(tag), _varint(len(data)), data)
    return b"".join(parts)


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    if len(partitions) > _REMEMBERED_PARTITIONS_MAX:
        return _encode_any(partitions)
    return _encode_few(partitions)


@lru_cache(maxsize=1024)
def _encode_few(partitions: frozenset[TopicPartition]) -> bytes:
    """A state is written twice with the same ones, and producers keep to their partitions."""
    return _encode_any(partitions)


def _encode_any(partitions: frozenset[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        by_topic[topic].append(index)
    parts = [_varint(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (_varint(len(name) + 1), name, _varint(len(indexes) + 1))
        parts.append(struct.pack(f">{len(indexes)}i", *indexes))
        parts.append(b"\0")
    return b"".join(parts)


def _decode_value(reader: "_Reader") -> StoredTransaction:
    version = reader.number(2)
    if not 0 <= version <= _VALUE_VERSION:
        raise CorruptionError(
            f"transaction record has version {version}, this version reads up to {_VALUE_VERSION}"
        )
    reader.flexible = version > 0
    producer_id, epoch = ProducerId(reader.number(8)), ProducerEpoch(reader.number(2))
    timeout_ms, status = reader.number(4), reader.number(1)
    state = _STATES.get(status)
    if state is None:
        raise CorruptionError(f"transaction record has the unknown state {status}")
    partitions: set[TopicPartition] = set()
    for _ in range(reader.array_length()):
        topic = reader.string()
        partitions.update(
            TopicPartition(topic, PartitionIndex(reader.number(4)))
            for _ in range(reader.array_length())
        )
        reader.tagged_fields()
    updated_at, started_at = TimestampMs(reader.number(8)), TimestampMs(reader.number(8))
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


def _tagged(fields: dict[int, bytes], tag: int, unsaid: int) -> int:
    data = fields.get(tag)
    return unsaid if data is None else int.from_bytes(data, "big", signed=True)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


class _Reader:
    """Reads Kafka's primitive types; every length is checked against what is left."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def string(self) -> str:
        return self.text(self._varint() - 1 if self.flexible else self.number(2))

    def text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(
                f"transaction record holds text that is not UTF-8: {error}"
            ) from error

    def array_length(self) -> int:
        length = self._varint() - 1 if self.flexible else self.number(4)
        if length == -1:
            return 0
        # An element takes more than a byte, so this bounds the loop by the data.
        if not 0 <= length <= len(self._data) - self._position:
            raise CorruptionError(f"transaction record claims {length} elements")
        return length

    def tagged_fields(self) -> dict[int, bytes]:
        if not self.flexible:
            return {}
        fields: dict[int, bytes] = {}
        for _ in range(self._varint()):
            tag = self._varint()
            fields[tag] = self._take(self._varint())
        return fields

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptionError("transaction record holds a number that does not end")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptionError("transaction record ends early")
        taken = self._data[self._position : end]
        self._position = end
        return taken
