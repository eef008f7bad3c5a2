"""The binary format of `__queue_state`.

A queue has one key for its last snapshot, and SLOTS keys that the changes after it use in turn. A
key is reused only after a snapshot that covers its old value, so a compacted log contains the whole
state. Snapshots and changes have the same layout: version, flags, epoch, sequence, next offset, a
base for times, a table of texts, runs of settled offsets, open offsets; in version 1 also the
epochs of leases of earlier leaders, and delay buckets. Numbers in lists are varints, each offset as
the distance from the previous one.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from moldau.leases.delay_buckets import SPANS_MS, DelayBucket
from moldau.leases.state import Dead, Leased, Open, QueueId, QueueRecord, Waiting
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicId
from moldau.model.queue_limits import ATTEMPTS_MAX
from moldau.records.kafka_types import Reader, string_bytes

SLOTS: Final = 128
"""Part of the stored format: any so many consecutive records include a snapshot."""
GROUP_BYTES_MAX: Final = 2**15 - 1
_SNAPSHOT_KEY: Final = 0
_CHANGE_KEY: Final = 1
_VALUE_VERSION: Final = 1
_PLAIN: Final = 0
"""The version of a record without leases of earlier leaders and without buckets; older brokers read
only this one."""
_IS_SNAPSHOT: Final = 1
_HEAD: Final = struct.Struct(">hBiqqq")
_INT64_MAX: Final = 2**63 - 1
_VARINT_BITS_MAX: Final = 63
_SETTLED_MAX: Final = 1_000_000
"""Far above open_max: a run in a corrupt record must not fill the memory."""
_LEASED, _WAITING, _DEAD = range(3)
_NAMES_REMEMBERED_MAX: Final = 512
"""Queues in use: each record has the name of its queue in its key."""


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def queue_key(queue: QueueId) -> bytes:
    """The queue's name in every key; tokens contain its checksum. Raises RefusedError."""
    group = queue.group.encode()
    if not 0 < len(group) <= GROUP_BYTES_MAX:
        raise RefusedError(
            ErrorCode.INVALID_GROUP_ID,
            f"the group name has {len(group)} bytes, but must have 1 to {GROUP_BYTES_MAX}",
        )
    return string_bytes(queue.group) + queue.topic_id + struct.pack(">i", queue.partition)


def encode(record: QueueRecord) -> tuple[bytes, bytes]:
    """Key and value to append."""
    name = queue_key(record.queue)
    if record.is_snapshot:
        key = struct.pack(">h", _SNAPSHOT_KEY) + name
    else:
        key = struct.pack(">h", _CHANGE_KEY) + name + _slot(record.sequence)
    return key, _encode_value(record)


def tombstones(queue: QueueId) -> list[tuple[bytes, None]]:
    """Records that delete the queue from a compacted log; to be written as one batch."""
    name = queue_key(queue)
    changes = struct.pack(">h", _CHANGE_KEY) + name
    keys = [struct.pack(">h", _SNAPSHOT_KEY) + name]
    keys += [changes + _slot(slot) for slot in range(SLOTS)]
    return [(key, None) for key in keys]


class RecordHead(NamedTuple):
    """The part of a record that a ledger needs."""

    queue: QueueId
    sequence: int
    epoch: Epoch
    is_snapshot: bool


def decode_head(key: bytes, value: bytes | None) -> RecordHead | QueueId | None:
    """The head; only the queue for a tombstone; None for an unknown kind of key.

    Raises CorruptionError.
    """
    kind = Reader(key).int16()
    if kind == _SNAPSHOT_KEY:
        queue, slot = _queue_of(key[2:]), b""
    elif kind == _CHANGE_KEY:
        queue, slot = _queue_of(key[2:-2]), key[-2:]
    else:
        return None
    if value is None:
        return queue
    if len(value) < _HEAD.size:
        raise CorruptionError("queue record is truncated")
    version, flags, epoch, sequence, _, _ = _HEAD.unpack_from(value)
    if not _PLAIN <= version <= _VALUE_VERSION:
        raise CorruptionError(
            f"queue record has version {version}; this broker supports up to {_VALUE_VERSION}"
        )
    if epoch < 0 or sequence < 1:
        raise CorruptionError(f"queue record has epoch {epoch}, sequence {sequence}")
    is_snapshot = bool(flags & _IS_SNAPSHOT)
    if is_snapshot != (kind == _SNAPSHOT_KEY):
        raise CorruptionError("queue record has a key of the wrong kind (snapshot or change)")
    if not is_snapshot and slot != _slot(sequence):
        raise CorruptionError(f"queue record {sequence} has the key of another slot")
    return RecordHead(queue, sequence, Epoch(epoch), is_snapshot)


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def _queue_of(name: bytes) -> QueueId:
    reader = Reader(name)
    group, topic_id, partition = reader.string(), reader.uuid(), reader.int32()
    if not group:
        raise CorruptionError("queue record without a group name")
    if not reader.is_at_end:
        raise CorruptionError("queue record has a key with bytes after its end")
    return QueueId(group, TopicId(topic_id), PartitionIndex(partition))


def decode(key: bytes, value: bytes | None) -> QueueRecord | QueueId | None:
    """The record; otherwise as `decode_head`. Raises CorruptionError."""
    head = decode_head(key, value)
    # With a RecordHead, the value is never None; the type checker cannot know.
    return _decode_value(head, value or b"") if isinstance(head, RecordHead) else head


def _slot(sequence: int) -> bytes:
    return struct.pack(">h", sequence % SLOTS)


# ---- writing


def _encode_value(record: QueueRecord) -> bytes:
    base, is_plain = _base_of(record)
    texts: dict[str, int] = {}
    opened = bytearray()
    before = -1
    last: Open | None = None
    neighbour = b""
    start = 0
    for offset, entry in record.opened:
        if entry is last and offset == before + 1:
            # Most are leased by one poll: they are encoded alike.
            opened += neighbour or (neighbour := b"\0" + opened[start:])
            before = offset
            continue
        _add_varint(opened, offset - before - 1)
        before, last, neighbour, start = offset, entry, b"", len(opened)
        match entry:
            case Leased():
                _add_varint(opened, entry.attempts << 2 | _LEASED)
                _add_varint(opened, entry.deadline - base)
                _add_varint(opened, texts.setdefault(entry.holder, len(texts)))
                if not is_plain:
                    _add_varint(opened, record.epoch - entry.epoch)
            case Waiting():
                _add_varint(opened, entry.attempts << 2 | _WAITING)
                _add_varint(opened, entry.not_before - base)
            case Dead():
                _add_varint(opened, entry.attempts << 2 | _DEAD)
                _add_varint(opened, texts.setdefault(entry.reason, len(texts)))
    data = bytearray(
        _HEAD.pack(
            _PLAIN if is_plain else _VALUE_VERSION,
            _IS_SNAPSHOT if record.is_snapshot else 0,
            record.epoch,
            record.sequence,
            record.next,
            base,
        )
    )
    _add_varint(data, len(texts))
    for text in texts:
        encoded = text.encode()
        _add_varint(data, len(encoded))
        data += encoded
    runs = list(_runs(record.settled))
    _add_varint(data, len(runs))
    end = 0
    for first, length in runs:
        _add_varint(data, first - end)
        _add_varint(data, length)
        end = first + length
    _add_varint(data, len(record.opened))
    data += opened
    if not is_plain:
        _add_varint(data, len(record.buckets))
        for bucket in record.buckets:
            _add_varint(data, SPANS_MS.index(bucket.span_ms))
            _add_varint(data, bucket.begin // bucket.span_ms)
            _add_varint(data, bucket.first)
            _add_varint(data, bucket.end - bucket.first)
            _add_varint(data, bucket.count)
    return bytes(data)


def _base_of(record: QueueRecord) -> tuple[int, bool]:
    """The earliest time in it, and whether it can be written as a plain one."""
    base: int | None = None
    is_plain = not record.buckets
    last: Open | None = None
    for _, entry in record.opened:
        if entry is last:
            continue
        last = entry
        if isinstance(entry, Leased):
            time = entry.deadline
            is_plain = is_plain and entry.epoch == record.epoch
        elif isinstance(entry, Waiting):
            time = entry.not_before
        else:
            continue
        if base is None or time < base:
            base = time
    return base or 0, is_plain


def _runs(offsets: tuple[Offset, ...]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as runs (first, length): acks are mostly for neighbours."""
    first = end = -1
    for offset in offsets:
        if offset != end:
            if first >= 0:
                yield first, end - first
            first = offset
        end = offset + 1
    if first >= 0:
        yield first, end - first


def _add_varint(data: bytearray, value: int) -> None:
    if value < 0x80:
        data.append(value)
        return
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)


# ---- reading


def _decode_value(head: RecordHead, value: bytes) -> QueueRecord:
    version, _, _, _, next_offset, base = _HEAD.unpack_from(value)
    if next_offset < 0:
        raise CorruptionError(f"queue record has next offset {next_offset}")
    texts, position = _read_texts(value, _HEAD.size)
    numbers = iter(_varints(value[position:]))
    try:
        settled = _read_settled(numbers, next_offset)
        is_plain = version == _PLAIN
        opened = _read_opened(numbers, next_offset, base, texts, head.epoch, is_plain=is_plain)
        buckets = () if is_plain else _read_buckets(numbers, next_offset)
    except StopIteration:
        raise CorruptionError("queue record is truncated") from None
    if next(numbers, None) is not None:
        raise CorruptionError("queue record has bytes after its end")
    if head.is_snapshot and settled:
        raise CorruptionError("queue record is a snapshot, but settles offsets")
    return QueueRecord(
        queue=head.queue,
        sequence=head.sequence,
        epoch=head.epoch,
        next=Offset(next_offset),
        settled=settled,
        opened=opened,
        is_snapshot=head.is_snapshot,
        buckets=buckets,
    )


def _read_texts(data: bytes, position: int) -> tuple[list[str], int]:
    count, position = _varint(data, position)
    # Each text has at least one byte, so this bounds the loop by the data.
    if count > len(data) - position:
        raise CorruptionError(f"queue record claims {count} texts")
    texts = []
    for _ in range(count):
        length, position = _varint(data, position)
        end = position + length
        if end > len(data):
            raise CorruptionError("queue record is truncated")
        try:
            texts.append(data[position:end].decode())
        except UnicodeDecodeError as error:
            raise CorruptionError(f"queue record holds text that is not UTF-8: {error}") from error
        position = end
    return texts, position


def _read_settled(numbers: Iterator[int], end_max: int) -> tuple[Offset, ...]:
    settled: list[Offset] = []
    end = 0
    for _ in range(next(numbers)):
        first = end + next(numbers)
        end = first + next(numbers)
        if len(settled) + end - first > _SETTLED_MAX or end > end_max:
            raise CorruptionError("queue record settles more offsets than can have been open")
        settled += map(Offset, range(first, end))
    return tuple(settled)


def _read_opened(
    numbers: Iterator[int],
    end_max: int,
    base: int,
    texts: list[str],
    epoch: Epoch,
    *,
    is_plain: bool,
) -> tuple[tuple[Offset, Open], ...]:
    opened: list[tuple[Offset, Open]] = []
    offset = -1
    for _ in range(next(numbers)):
        offset += next(numbers) + 1
        if offset >= end_max:
            raise CorruptionError("queue record opens an offset at or after its next offset")
        attempts, kind = divmod(next(numbers), 4)
        if attempts > ATTEMPTS_MAX:
            raise CorruptionError(f"queue record counts {attempts} deliveries")
        entry: Open
        if kind == _LEASED:
            deadline = _time(base + next(numbers))
            holder = _text_of(texts, next(numbers))
            given = epoch if is_plain else epoch - next(numbers)
            if given < 0:
                raise CorruptionError("queue record has a lease of a negative epoch")
            entry = Leased(attempts, holder, deadline, Epoch(given))
        elif kind == _WAITING:
            entry = Waiting(attempts, _time(base + next(numbers)))
        elif kind == _DEAD:
            entry = Dead(attempts, _text_of(texts, next(numbers)))
        else:
            raise CorruptionError(f"queue record has an open offset of unknown kind {kind}")
        opened.append((Offset(offset), entry))
    return tuple(opened)


def _read_buckets(numbers: Iterator[int], end_max: int) -> tuple[DelayBucket, ...]:
    buckets: list[DelayBucket] = []
    for _ in range(next(numbers)):
        kind = next(numbers)
        if kind >= len(SPANS_MS):
            raise CorruptionError(f"queue record has a delay bucket of unknown kind {kind}")
        span_ms = SPANS_MS[kind]
        begin = _time(next(numbers) * span_ms)
        first = next(numbers)
        end = first + next(numbers)
        if end > end_max:
            raise CorruptionError("queue record has a delay bucket beyond its next offset")
        buckets.append(DelayBucket(span_ms, begin, Offset(first), Offset(end), next(numbers)))
    return tuple(buckets)


def _time(time_ms: int) -> TimestampMs:
    if time_ms > _INT64_MAX:
        raise CorruptionError("queue record has a time beyond 64 bits")
    return TimestampMs(time_ms)


def _text_of(texts: list[str], index: int) -> str:
    if index >= len(texts):
        raise CorruptionError(f"queue record refers to text {index} of {len(texts)}")
    return texts[index]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and the position after it."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if position >= len(data):
            raise CorruptionError("queue record is truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CorruptionError("queue record has an unterminated varint")


def _varints(data: bytes) -> list[int]:
    """All at once, for speed: there are hundreds, most of them a single byte."""
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift >= _VARINT_BITS_MAX:
                raise CorruptionError("queue record has an unterminated varint")
        elif shift:
            numbers.append(value | byte << shift)
            value = shift = 0
        else:
            numbers.append(byte)
    if shift:
        raise CorruptionError("queue record is truncated")
    return numbers
