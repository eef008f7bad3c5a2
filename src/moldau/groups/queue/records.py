"""Owns the bytes of `__queue_state`.

A queue has one key for its last snapshot, and SLOTS keys that the changes after it take turns in:
a key comes around only after a snapshot that holds what it held, so a compacted log keeps a queue
whole. Both kinds of value are the same: version, flags, epoch, sequence, next offset, a base for
times, a table of texts, runs of settled offsets, open offsets; in version 1 also the epochs of
leases that were given by leaders before, and shelves. Numbers in lists are varints, each offset as
the distance from the one before.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.groups.format import Reader, string_bytes
from moldau.groups.queue.config import ATTEMPTS_LIMIT
from moldau.groups.queue.delay_buckets import SPANS_MS, DelayBucket
from moldau.groups.queue.state import Dead, Leased, Open, QueueId, QueueRecord, Waiting
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicId

SLOTS: Final = 128
"""A part of the stored format: there is a snapshot among any so many records in a row."""
GROUP_BYTES_MAX: Final = 2**15 - 1
_SNAPSHOT_KEY: Final = 0
_CHANGE_KEY: Final = 1
_VALUE_VERSION: Final = 1
_PLAIN: Final = 0
"""The version of a record without leases of earlier leaders and without shelves, which brokers from
before there were any read."""
_IS_SNAPSHOT: Final = 1
_HEAD: Final = struct.Struct(">hBiqqq")
_INT64_MAX: Final = 2**63 - 1
_VARINT_BITS_MAX: Final = 63
_SETTLED_MAX: Final = 1_000_000
"""Far above what can be open at once: a run of a damaged record must not fill the memory."""
_LEASED, _WAITING, _DEAD = range(3)


def queue_key(queue: QueueId) -> bytes:
    """The queue's name in every key; also what tokens carry the sum of. Raises RefusedError."""
    group = queue.group.encode()
    if not 0 < len(group) <= GROUP_BYTES_MAX:
        raise RefusedError(
            ErrorCode.INVALID_GROUP_ID,
            f"a group's name takes 1 to {GROUP_BYTES_MAX} bytes, this one {len(group)}",
        )
    return string_bytes(queue.group) + queue.topic_id + struct.pack(">i", queue.partition)


def encode(record: QueueRecord) -> tuple[bytes, bytes]:
    """Key and value as they are appended."""
    name = queue_key(record.queue)
    if record.is_snapshot:
        key = struct.pack(">h", _SNAPSHOT_KEY) + name
    else:
        key = struct.pack(">h", _CHANGE_KEY) + name + _slot(record.sequence)
    return key, _encode_value(record)


def tombstones(queue: QueueId) -> list[tuple[bytes, None]]:
    """What makes a compacted log forget the queue: to be written in one batch."""
    name = queue_key(queue)
    changes = struct.pack(">h", _CHANGE_KEY) + name
    keys = [struct.pack(">h", _SNAPSHOT_KEY) + name]
    keys += [changes + _slot(slot) for slot in range(SLOTS)]
    return [(key, None) for key in keys]


class RecordHead(NamedTuple):
    """What is to be known of a record to keep it, without looking into it."""

    queue: QueueId
    sequence: int
    epoch: Epoch
    is_snapshot: bool


def decode_head(key: bytes, value: bytes | None) -> RecordHead | QueueId | None:
    """The head; the queue alone for a tombstone; None for a key of a kind unknown here.

    Raises CorruptionError.
    """
    reader = Reader(key)
    kind = reader.int16()
    if kind not in (_SNAPSHOT_KEY, _CHANGE_KEY):
        return None
    group, topic_id, partition = reader.string(), reader.uuid(), reader.int32()
    slot = b"" if kind == _SNAPSHOT_KEY else struct.pack(">h", reader.int16())
    queue = QueueId(group, TopicId(topic_id), PartitionIndex(partition))
    if value is None:
        return queue
    if len(value) < _HEAD.size:
        raise CorruptionError("queue record ends early")
    version, flags, epoch, sequence, _, _ = _HEAD.unpack_from(value)
    if not _PLAIN <= version <= _VALUE_VERSION:
        raise CorruptionError(
            f"queue record has version {version}, this version reads up to {_VALUE_VERSION}"
        )
    if epoch < 0 or sequence < 1:
        raise CorruptionError("queue record has a negative number where none can be")
    is_snapshot = bool(flags & _IS_SNAPSHOT)
    if is_snapshot != (kind == _SNAPSHOT_KEY):
        raise CorruptionError("queue record is filed as what it is not")
    if not is_snapshot and slot != _slot(sequence):
        raise CorruptionError(f"queue record {sequence} is filed in another's place")
    return RecordHead(queue, sequence, Epoch(epoch), is_snapshot)


def decode(key: bytes, value: bytes | None) -> QueueRecord | QueueId | None:
    """The record; else as `decode_head`. Raises CorruptionError."""
    head = decode_head(key, value)
    # A value of None has no head; the type checker cannot know.
    return _decode_value(head, value or b"") if isinstance(head, RecordHead) else head


def _slot(sequence: int) -> bytes:
    return struct.pack(">h", sequence % SLOTS)


# ---- writing


def _encode_value(record: QueueRecord) -> bytes:
    base = min(_times(record), default=0)
    is_plain = not record.shelves and all(
        entry.epoch == record.epoch for _, entry in record.opened if isinstance(entry, Leased)
    )
    texts: dict[str, int] = {}
    opened = bytearray()
    before = -1
    for offset, entry in record.opened:
        _add_varint(opened, offset - before - 1)
        before = offset
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
        _add_varint(data, len(record.shelves))
        for shelf in record.shelves:
            _add_varint(data, SPANS_MS.index(shelf.span_ms))
            _add_varint(data, shelf.begin // shelf.span_ms)
            _add_varint(data, shelf.first)
            _add_varint(data, shelf.end - shelf.first)
            _add_varint(data, shelf.count)
    return bytes(data)


def _times(record: QueueRecord) -> Iterator[int]:
    for _, entry in record.opened:
        match entry:
            case Leased():
                yield entry.deadline
            case Waiting():
                yield entry.not_before


def _runs(offsets: tuple[Offset, ...]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as first ones and lengths: acks mostly come for neighbours."""
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
        raise CorruptionError("queue record has a negative number where none can be")
    texts, position = _read_texts(value, _HEAD.size)
    numbers = iter(_varints(value[position:]))
    try:
        settled = _read_settled(numbers, next_offset)
        is_plain = version == _PLAIN
        opened = _read_opened(numbers, next_offset, base, texts, head.epoch, is_plain=is_plain)
        shelves = () if is_plain else _read_shelves(numbers, next_offset)
    except StopIteration:
        raise CorruptionError("queue record ends early") from None
    if next(numbers, None) is not None:
        raise CorruptionError("queue record has bytes after its end")
    if head.is_snapshot and settled:
        raise CorruptionError("queue record is a snapshot that settles something")
    return QueueRecord(
        queue=head.queue,
        sequence=head.sequence,
        epoch=head.epoch,
        next=Offset(next_offset),
        settled=settled,
        opened=opened,
        is_snapshot=head.is_snapshot,
        shelves=shelves,
    )


def _read_texts(data: bytes, position: int) -> tuple[list[str], int]:
    count, position = _varint(data, position)
    # Each takes a byte at least, so this bounds the loop by the data.
    if count > len(data) - position:
        raise CorruptionError(f"queue record claims {count} texts")
    texts = []
    for _ in range(count):
        length, position = _varint(data, position)
        end = position + length
        if end > len(data):
            raise CorruptionError("queue record ends early")
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
            raise CorruptionError("queue record settles more than can have been open")
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
            raise CorruptionError("queue record opens an offset that it has not come to")
        attempts, kind = divmod(next(numbers), 4)
        if attempts > ATTEMPTS_LIMIT:
            raise CorruptionError(f"queue record counts {attempts} deliveries")
        entry: Open
        if kind == _LEASED:
            deadline = _time(base + next(numbers))
            holder = _text_of(texts, next(numbers))
            given = epoch if is_plain else epoch - next(numbers)
            if given < 0:
                raise CorruptionError("queue record holds a lease from before the first epoch")
            entry = Leased(attempts, holder, deadline, Epoch(given))
        elif kind == _WAITING:
            entry = Waiting(attempts, _time(base + next(numbers)))
        elif kind == _DEAD:
            entry = Dead(attempts, _text_of(texts, next(numbers)))
        else:
            raise CorruptionError(f"queue record holds an offset of the unknown kind {kind}")
        opened.append((Offset(offset), entry))
    return tuple(opened)


def _read_shelves(numbers: Iterator[int], end_max: int) -> tuple[DelayBucket, ...]:
    shelves: list[DelayBucket] = []
    for _ in range(next(numbers)):
        kind = next(numbers)
        if kind >= len(SPANS_MS):
            raise CorruptionError(f"queue record holds a shelf of the unknown kind {kind}")
        span_ms = SPANS_MS[kind]
        begin = _time(next(numbers) * span_ms)
        first = next(numbers)
        end = first + next(numbers)
        if end > end_max:
            raise CorruptionError("queue record has a shelf for offsets that it has not come to")
        shelves.append(DelayBucket(span_ms, begin, Offset(first), Offset(end), next(numbers)))
    return tuple(shelves)


def _time(time_ms: int) -> TimestampMs:
    if time_ms > _INT64_MAX:
        raise CorruptionError("queue record holds a time that cannot be")
    return TimestampMs(time_ms)


def _text_of(texts: list[str], index: int) -> str:
    if index >= len(texts):
        raise CorruptionError(f"queue record names text {index} of {len(texts)}")
    return texts[index]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and where the next byte is."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if position >= len(data):
            raise CorruptionError("queue record ends early")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CorruptionError("queue record holds a number that does not end")


def _varints(data: bytes) -> list[int]:
    """All of them at once: most are a single byte, and there are hundreds."""
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift >= _VARINT_BITS_MAX:
                raise CorruptionError("queue record holds a number that does not end")
        elif shift:
            numbers.append(value | byte << shift)
            value = shift = 0
        else:
            numbers.append(byte)
    if shift:
        raise CorruptionError("queue record ends early")
    return numbers
