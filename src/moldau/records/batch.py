"""The header of a record batch (Kafka's message format v2): read, stamp, check.

Batches are opaque to the broker: it reads these 61 bytes, checks one CRC over the rest and does not
inspect records. records/record.py does, for slow paths only.

    byte  0  base offset        outside the CRC: the leader stamps it
    byte  8  length of the rest (size - 12)
    byte 12  leader epoch       outside the CRC: the leader stamps it
    byte 16  magic, always 2 here
    byte 17  CRC32C of everything from byte 21 on
    byte 21  attributes, last offset delta, base and max timestamp, producer id, producer epoch,
             base sequence, record count
    byte 61  the records, compressed as one block if the attributes name a codec
"""

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NoReturn

from crc32c import crc32c

from moldau.model.errors import ErrorCode, MoldauError, RefusedError
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12
"""The batch's own length field counts from here."""
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_START: Final = 21
"""First byte that the checksum covers; the attributes are here."""
MAX_TIMESTAMP_AT: Final = 35
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
CODEC_MAX: Final = 4

RECORD_BYTES_MIN: Final = 7
"""An empty record: length, attributes, two deltas, two null lengths, header count."""
SEQUENCE_MASK: Final = 0x7FFFFFFF
TIMESTAMP_MIN, TIMESTAMP_MAX = -(1 << 63), (1 << 63) - 1
"""A base timestamp and a delta of 64 bits each can have a sum that no batch can store again."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_unpack: Final = _HEADER.unpack_from
pack_header: Final = _HEADER.pack
_pack_offset: Final = struct.Struct(">q").pack_into
_pack_place: Final = struct.Struct(">qii").pack_into
_checksum: Final = crc32c
_pack_epoch: Final = struct.Struct(">i").pack_into
_pack_crc: Final = struct.Struct(">I").pack_into
_pack_attributes: Final = struct.Struct(">h").pack_into
_unpack_attributes: Final = struct.Struct(">h").unpack_from
# Every attribute bit with a meaning to the check below. Values up to CODEC_MAX are a plain batch.
_FLAGS_MASK: Final = CODEC_MASK | APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT

Buffer = bytes | bytearray | memoryview


class BatchFormatError(MoldauError):
    """Bytes that are not a valid record batch."""


_FIELDS: Final = (
    "base_offset",
    "size",
    "leader_epoch",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)
_values: Final[Callable[["BatchHeader"], tuple[int, ...]]] = attrgetter(*_FIELDS)


class BatchHeader:
    """The 61 bytes at the head of a batch. `size` counts all of its bytes, header included."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )

    def __init__(
        self,
        base_offset: Offset,
        size: int,
        leader_epoch: Epoch,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: TimestampMs,
        max_timestamp: TimestampMs,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.size = size
        self.leader_epoch = leader_epoch
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchHeader) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        values = zip(_FIELDS, _values(self), strict=True)
        return f"BatchHeader({', '.join(f'{name}={value}' for name, value in values)})"

    def replaced(self, **changes: int) -> "BatchHeader":
        """A copy with other values."""
        values: dict[str, Any] = dict(zip(_FIELDS, _values(self), strict=True))
        if unknown := changes.keys() - values.keys():
            raise TypeError(f"a batch header has no {', '.join(sorted(unknown))}")
        values.update(changes)
        return BatchHeader(*values.values())

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        """Number of the compression codec; records/compression.py names it."""
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        """The broker set the timestamp: max_timestamp applies to every record."""
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """A transaction marker, written by a broker."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; 0 follows 2**31 - 1. -1 if there are no sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The CRC is not checked, and the records may be missing."""
    base_offset: Offset
    length: int
    epoch: Epoch
    magic: int
    crc: int
    attributes: int
    delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    count: int
    try:
        (
            base_offset,
            length,
            epoch,
            magic,
            crc,
            attributes,
            delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = _unpack(buffer, position)
    except struct.error:
        raise BatchFormatError(f"fewer than {HEADER_BYTES} bytes left at byte {position}") from None
    size = length + 12
    if magic != 2:
        raise BatchFormatError(f"unsupported magic {magic} at byte {position}")
    if size < 61:
        raise BatchFormatError(f"batch of {size} bytes at byte {position}: shorter than its header")
    if delta < 0 or count < 0:
        raise BatchFormatError(
            f"batch at byte {position} claims {count} records, last offset delta {delta}"
        )
    return BatchHeader(
        base_offset,
        size,
        epoch,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


def crc_matches(buffer: Buffer, position: int, size: int, crc: int) -> bool:
    """Whether the checksum of the batch at `position` is `crc`. Copies nothing."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size]) == crc


def stamp(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set offset and epoch of a batch. Both are outside the CRC, which stays valid."""
    _pack_offset(buffer, position, base_offset)
    _pack_epoch(buffer, position + LENGTH_END, leader_epoch)


def place(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, offset: Offset, epoch: Epoch
) -> None:
    """Stamp a batch, and its header, which the caller has made."""
    _pack_place(buffer, position, offset, header.size - LENGTH_END, epoch)
    header.base_offset = offset
    header.leader_epoch = epoch


def stamp_append_time(
    buffer: bytearray | memoryview, position: int, size: int, timestamp_ms: int
) -> None:
    """Set the broker's time for every record of a batch, and update the CRC."""
    (attributes,) = _unpack_attributes(buffer, position + CRC_START)
    _pack_attributes(buffer, position + CRC_START, attributes | APPEND_TIME_BIT)
    _pack_offset(buffer, position + MAX_TIMESTAMP_AT, timestamp_ms)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + size])
    _pack_crc(buffer, position + CRC_AT, crc)


def build_raw_batch(header: BatchHeader, payload: bytes) -> bytes:
    """A batch with that header, whose size and checksum are computed, and encoded records."""
    batch = bytearray(
        pack_header(
            header.base_offset,
            HEADER_BYTES + len(payload) - LENGTH_END,
            header.leader_epoch,
            MAGIC,
            0,
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        )
    )
    batch += payload
    return seal_batch(batch)


def seal_batch(batch: bytearray) -> bytes:
    """Write the checksum of a finished batch."""
    with memoryview(batch) as view:
        crc = crc32c(view[CRC_START:])
    _pack_crc(batch, CRC_AT, crc)
    return bytes(batch)


def check_batches(
    data: memoryview, *, bytes_max: int, is_single: bool = False
) -> list[BatchHeader]:
    """The headers of produced data, after checking everything that the broker relies on.

    Runs for every partition of every produce request, so the valid case is one series of cheap
    comparisons; only an invalid batch is inspected again to report the reason. Timestamps and the
    content of records are not checked: batches are opaque.
    """
    end = len(data)
    position = 0
    headers = []
    base_offset: Offset
    length: int
    epoch: Epoch
    magic: int
    crc: int
    attributes: int
    delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    count: int
    while True:
        if end - position < HEADER_BYTES:
            _reject_framing(data, position)
        (
            base_offset,
            length,
            epoch,
            magic,
            crc,
            attributes,
            delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = _unpack(data, position)
        size = length + 12
        batch_end = position + size
        if magic != 2 or size < 61 or batch_end > end:
            _reject_framing(data, position)
        if size > bytes_max:
            raise RefusedError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {size} bytes exceeds the topic's limit of {bytes_max}",
            )
        checked: int = _checksum(data[position + 21 : batch_end])
        if checked != crc:
            raise RefusedError(ErrorCode.CORRUPT_MESSAGE, "checksum mismatch in the batch")
        if attributes & _FLAGS_MASK > CODEC_MAX:
            _check_flags(attributes, producer_id)
        if (
            count <= 0
            or delta != count - 1
            or (attributes & CODEC_MASK == 0 and count * RECORD_BYTES_MIN > size - HEADER_BYTES)
        ):
            raise RefusedError(
                ErrorCode.INVALID_RECORD,
                f"batch of {size} bytes claims {count} records, last offset delta {delta}",
            )
        # Without a producer id the other two have no meaning, and some clients send zeros.
        if producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0):
            raise RefusedError(
                ErrorCode.INVALID_RECORD,
                f"producer {producer_id} needs an epoch and a sequence, not {producer_epoch} and "
                f"{base_sequence}",
            )
        headers.append(
            BatchHeader(
                base_offset,
                size,
                epoch,
                crc,
                attributes,
                delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                count,
            )
        )
        if batch_end == end:
            return headers
        if is_single:
            raise RefusedError(
                ErrorCode.INVALID_RECORD,
                "a request may have only one record batch for a partition",
            )
        position = batch_end


def _reject_framing(data: memoryview, position: int) -> NoReturn:
    """Report why there is no batch at `position`."""
    left = len(data) - position
    if not len(data):
        raise RefusedError(ErrorCode.INVALID_RECORD, "the request has no record batch")
    # Formats v0 and v1 have shorter headers, but the same position of the magic byte.
    if left > MAGIC_AT and data[position + MAGIC_AT] in (0, 1):
        raise RefusedError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{data[position + MAGIC_AT]} is not supported, only v2",
        )
    raise RefusedError(
        ErrorCode.CORRUPT_MESSAGE, f"the {left} bytes at {position} are not a complete record batch"
    )


def _check_flags(attributes: int, producer_id: int) -> None:
    """Reject attributes that a client must not send."""
    if attributes & CODEC_MASK > CODEC_MAX:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"unknown compression codec {attributes & CODEC_MASK}",
        )
    if attributes & CONTROL_BIT:
        raise RefusedError(ErrorCode.INVALID_RECORD, "clients cannot write control batches")
    if attributes & APPEND_TIME_BIT:
        raise RefusedError(
            ErrorCode.INVALID_TIMESTAMP, "clients cannot set the timestamp type LogAppendTime"
        )
    # Without a producer id no marker could end the transaction.
    if producer_id < 0:
        raise RefusedError(ErrorCode.INVALID_RECORD, "transactional batch without a producer id")
