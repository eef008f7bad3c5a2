"""Owns the header of a record batch (Kafka's message format v2): view, checksum, stamp, check.

Batches are opaque to the broker: it reads these 61 bytes, checks one CRC over the rest and never
looks at a record. What is inside is the business of records/record.py, for slow paths only.

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
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from moldau.model.errors import ErrorCode, MoldauError, RefusedError
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs

HEADER_BYTES = 61
LENGTH_END = 12
"""The batch's own length field counts from here."""
MAGIC_AT = 16
CRC_AT = 17
CRC_START = 21
"""First byte that the checksum covers; the attributes stand here."""
MAX_TIMESTAMP_AT = 35
MAGIC = 2

CODEC_MASK = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
CODEC_MAX = 4

RECORD_BYTES_MIN = 7
"""An empty record: length, attributes, two deltas, two null lengths, header count."""
SEQUENCE_MASK = 0x7FFFFFFF

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack = _HEADER.unpack_from
_pack_offset = struct.Struct(">q").pack_into
_pack_epoch = struct.Struct(">i").pack_into
_pack_crc = struct.Struct(">I").pack_into
_pack_attributes = struct.Struct(">h").pack_into
_unpack_attributes = struct.Struct(">h").unpack_from
_new_header = tuple.__new__
# Every attribute bit with a meaning to the check below. Values up to CODEC_MAX are a plain batch.
_FLAGS_MASK = CODEC_MASK | APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT

Buffer = bytes | bytearray | memoryview


class BatchFormatError(MoldauError):
    """Bytes that are no valid record batch. The caller knows whose they are and what follows."""


class BatchHeader(NamedTuple):
    """The 61 bytes at the head of a batch. `size` counts all of its bytes, header included."""

    base_offset: Offset
    size: int
    leader_epoch: Epoch
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

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
        """The broker set the timestamp: max_timestamp counts for every record."""
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """A transaction marker, written by a broker."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_producer(self) -> bool:
        """Sent by an idempotent producer."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; after 2**31 - 1 comes 0. -1 if there are no sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The CRC is not checked, and the records may be missing."""
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
        raise BatchFormatError(f"fewer than {HEADER_BYTES} bytes at {position}") from None
    size = length + 12
    if magic != 2:
        raise BatchFormatError(f"magic {magic} at {position}")
    if size < 61:
        raise BatchFormatError(f"batch of {size} bytes at {position}")
    if delta < 0 or count < 0:
        raise BatchFormatError(f"batch of {count} records, last delta {delta}, at {position}")
    return _new_header(
        BatchHeader,
        (
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
        ),
    )


def crc_matches(buffer: Buffer, position: int, size: int, crc: int) -> bool:
    """Whether the checksum of the batch at `position` is `crc`. Copies nothing."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size]) == crc


def stamp(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Give a batch its place in the log. Both fields lie outside the CRC, which stays valid."""
    _pack_offset(buffer, position, base_offset)
    _pack_epoch(buffer, position + LENGTH_END, leader_epoch)


def stamp_append_time(
    buffer: bytearray | memoryview, position: int, size: int, timestamp_ms: int
) -> None:
    """Put the broker's time on every record of a batch, and renew the CRC."""
    (attributes,) = _unpack_attributes(buffer, position + CRC_START)
    _pack_attributes(buffer, position + CRC_START, attributes | APPEND_TIME_BIT)
    _pack_offset(buffer, position + MAX_TIMESTAMP_AT, timestamp_ms)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + size])
    _pack_crc(buffer, position + CRC_AT, crc)


def check_batches(data: memoryview, *, bytes_max: int) -> list[BatchHeader]:
    """The headers of produced data, once everything that the broker relies on is checked.

    Runs for every partition of every produce request, so the good case is one run of cheap
    comparisons; only a bad batch is looked at again to say what is wrong with it. Timestamps and
    what stands inside the records are not checked: batches are opaque.
    """
    end = len(data)
    position = 0
    headers = []
    while True:
        if end - position < HEADER_BYTES:
            _refuse_framing(data, position)
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
            _refuse_framing(data, position)
        if size > bytes_max:
            raise RefusedError(
                ErrorCode.MESSAGE_TOO_LARGE, f"batch of {size} bytes; the topic takes {bytes_max}"
            )
        if crc32c(data[position + 21 : batch_end]) != crc:
            raise RefusedError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
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
        # Without a producer id the other two mean nothing, and some clients leave zeros there.
        if producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0):
            raise RefusedError(
                ErrorCode.INVALID_RECORD,
                f"producer {producer_id} with epoch {producer_epoch}, sequence {base_sequence}",
            )
        headers.append(
            _new_header(
                BatchHeader,
                (
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
                ),
            )
        )
        if batch_end == end:
            return headers
        position = batch_end


def _refuse_framing(data: memoryview, position: int) -> NoReturn:
    """Say why no batch can start at `position`."""
    left = len(data) - position
    if not len(data):
        raise RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
    # Formats v0 and v1 have shorter headers, but their magic stands in the same place.
    if left > MAGIC_AT and data[position + MAGIC_AT] in (0, 1):
        raise RefusedError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{data[position + MAGIC_AT]}; only v2 is accepted",
        )
    raise RefusedError(
        ErrorCode.CORRUPT_MESSAGE, f"the {left} bytes at {position} are no whole record batch"
    )


def _check_flags(attributes: int, producer_id: int) -> None:
    """Refuse attributes that a client must not send."""
    if attributes & CODEC_MASK > CODEC_MAX:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {attributes & CODEC_MASK}"
        )
    if attributes & CONTROL_BIT:
        raise RefusedError(ErrorCode.INVALID_RECORD, "clients cannot write control batches")
    if attributes & APPEND_TIME_BIT:
        raise RefusedError(
            ErrorCode.INVALID_TIMESTAMP, "clients cannot set the timestamp type LogAppendTime"
        )
    # Without a producer id no marker would ever end the transaction.
    if producer_id < 0:
        raise RefusedError(ErrorCode.INVALID_RECORD, "transactional batch without a producer id")
