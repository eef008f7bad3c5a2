"""The records inside a batch: read, build, recompress. Slow paths only.

Ordinary produce and fetch do not use it. Internal topics, compaction, topics that rewrite batches,
tests and the command line do.

A record's numbers are zig-zag varints: length, attributes (one byte, unused), timestamp delta,
offset delta, key length and key, value length and value, header count, headers. Length -1 is null.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.model.ids import (
    NO_EPOCH,
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from moldau.model.limits import DECOMPRESSED_BYTES_MAX
from moldau.records.batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    RECORD_BYTES_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    TRANSACTIONAL_BIT,
    BatchFormatError,
    BatchHeader,
    Buffer,
    build_raw_batch,
    crc_matches,
    pack_header,
    read_header,
    seal_batch,
)
from moldau.records.compression import Codec, compress, decompress

FIRST_OFFSET = Offset(0)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = -1

# Header keys are UTF-8 by contract, but brokers never check: keep what is not as it is.
_KEY_ERRORS = "surrogateescape"

# What a NamedTuple's own constructor does, without its call.
_new_record = tuple.__new__

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One message. `offset` is its offset in the partition; build_batch ignores it."""

    offset: Offset
    timestamp: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Headers


def read_records(batch: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """The records of exactly one batch. Raises BatchFormatError.

    Offsets increase, and may have gaps after compaction. With the append-time flag every record
    has the batch's timestamp.
    """
    header, body = _open_batch(batch, bytes_max)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    is_append_time = header.is_append_time
    records: list[Record] = []
    position = 0
    delta_last = -1
    try:
        for _ in range(header.record_count):
            size, position = read_varint(body, position)
            end = position + size
            if size < RECORD_BYTES_MIN - 1 or end > len(body):
                raise BatchFormatError(f"record of {size} bytes, {len(body) - position} left")
            timestamp_delta, delta, key, value, position = _read_fields(body, position + 1, end)
            headers: Headers = []
            if position + 1 == end and body[position] == 0:
                position = end
            else:
                headers, position = read_headers(body, position, end)
            if position != end:
                raise BatchFormatError(f"record ends at byte {position}, not {end}")
            if not delta_last < delta <= header.last_offset_delta:
                raise BatchFormatError(f"offset delta {delta} after {delta_last}")
            delta_last = delta
            timestamp = header.max_timestamp if is_append_time else base_timestamp + timestamp_delta
            if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                raise BatchFormatError(f"timestamp {timestamp} has more than 64 bits")
            fields = (base_offset + delta, timestamp, key, value, headers)
            records.append(_new_record(Record, fields))
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    if position != len(body):
        raise BatchFormatError(f"{len(body) - position} bytes after the last record")
    return records


def _read_fields(
    data: bytes, position: int, end: int
) -> tuple[int, int, bytes | None, bytes | None, int]:
    """Time and offset deltas, key and value, and the position of the header count.

    Numbers of one byte, the common case, are read without a call: coordinators read hundreds of
    thousands of records when they are elected.
    """
    timestamp_delta = data[position]
    if timestamp_delta < 0x80:
        timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
        position += 1
    else:
        timestamp_delta, position = read_varint(data, position)
    delta = data[position]
    if delta < 0x80:
        delta = (delta >> 1) ^ -(delta & 1)
        position += 1
    else:
        delta, position = read_varint(data, position)
    key: bytes | None
    value: bytes | None
    size = data[position]
    field_end = position + 1 + (size >> 1)
    if size < 0x80 and not size & 1 and field_end <= end:
        key = data[position + 1 : field_end]
        position = field_end
    else:
        key, position = read_bytes(data, position, end)
    size = data[position]
    field_end = position + 1 + (size >> 1)
    if size < 0x80 and not size & 1 and field_end <= end:
        value = data[position + 1 : field_end]
        position = field_end
    else:
        value, position = read_bytes(data, position, end)
    return timestamp_delta, delta, key, value, position


def has_null_key(batch: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bool:
    """Whether any record has no key. Skips the rest of each record without checking it.

    Short numbers, the common case, are read without a call: other clients wait meanwhile.
    """
    header, body = _open_batch(batch, bytes_max)
    position = 0
    try:
        for _ in range(header.record_count):
            size = body[position]
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
                position += 1
            else:
                size, position = read_varint(body, position)
            end = position + size
            if size < RECORD_BYTES_MIN - 1 or end > len(body):
                raise BatchFormatError(f"record of {size} bytes, {len(body) - position} left")
            position += 1
            if body[position] < 0x80:
                position += 1
            else:
                _, position = read_varint(body, position)
            if body[position] < 0x80:
                position += 1
            elif body[position + 1] < 0x80:
                # Offsets from the 64th record on.
                position += 2
            elif body[position + 2] < 0x80:
                position += 3
            else:
                _, position = read_varint(body, position)
            if body[position] >= 0x80:
                read_varint(body, position)
            # As in every zig-zag number, the lowest bit is the sign.
            if body[position] & 1:
                return True
            position = end
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    return False


def recompress(batch: Buffer, codec: Codec, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The same batch with another codec. Only the CRC changes as well."""
    header, body = _open_batch(batch, bytes_max)
    if header.codec == codec:
        return bytes(batch)
    attributes = header.attributes & ~CODEC_MASK | codec
    return build_raw_batch(header.replaced(attributes=attributes), compress(codec, body))


def build_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: Offset = FIRST_OFFSET,
    leader_epoch: Epoch = NO_EPOCH,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    append_time: TimestampMs | None = None,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of at least one record. Record i gets offset base_offset + i.

    With `append_time` the batch has that timestamp for all its records; their own stay inside,
    unused.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    body = _encode_records(records, base_timestamp)
    attributes = int(codec)
    attributes |= APPEND_TIME_BIT if append_time is not None else 0
    attributes |= TRANSACTIONAL_BIT if transactional else 0
    attributes |= CONTROL_BIT if control else 0
    if append_time is not None:
        max_timestamp = append_time
    else:
        max_timestamp = max(record.timestamp for record in records)
    payload = compress(codec, body)
    result = bytearray(
        pack_header(
            base_offset,
            HEADER_BYTES + len(payload) - LENGTH_END,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            len(records) - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    result += payload
    return seal_batch(result)


def _open_batch(batch: Buffer, bytes_max: int) -> tuple[BatchHeader, bytes]:
    """Header and decompressed records of exactly one batch, after verifying its checksum."""
    header = read_header(batch)
    if header.size != len(batch):
        raise BatchFormatError(f"batch of {header.size} bytes in {len(batch)}")
    if not crc_matches(batch, 0, header.size, header.crc):
        raise BatchFormatError("checksum mismatch in the batch")
    return header, open_body(batch, header, bytes_max=bytes_max)


def open_body(
    batch: Buffer, header: BatchHeader, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The decompressed records of a batch whose checksum was verified."""
    try:
        codec = Codec(header.codec)
    except ValueError:
        raise BatchFormatError(f"unknown codec {header.codec}") from None
    return decompress(codec, memoryview(batch)[HEADER_BYTES : header.size], bytes_max)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zig-zag varint and the position after it. IndexError past the end."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise BatchFormatError("number longer than 64 bits")
    if value >= 1 << 64:
        raise BatchFormatError("number longer than 64 bits")
    return (value >> 1) ^ -(value & 1), position


def read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Length and bytes, all before `end`."""
    size, position = read_varint(data, position)
    if size < 0:
        if size != -1:
            raise BatchFormatError(f"negative field length {size}")
        return None, position
    field_end = position + size
    if field_end > end:
        raise BatchFormatError(f"field of {size} bytes, {end - position} left in its record")
    return data[position:field_end], field_end


def read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """Header count and headers, all before `end`."""
    count, position = read_varint(data, position)
    if count == 0:
        return [], position
    if count < 0:
        raise BatchFormatError(f"negative header count {count}")
    headers: Headers = []
    # A malicious count ends at the end of the record: every header takes bytes.
    for _ in range(count):
        key, position = read_bytes(data, position, end)
        if key is None:
            raise BatchFormatError("header without a key")
        value, position = read_bytes(data, position, end)
        headers.append((key.decode("utf-8", _KEY_ERRORS), value))
    return headers, position


def _encode_records(records: Sequence[Record], base_timestamp: int) -> bytes:
    """All records, each with its length.

    Protocols that accept single records spend most of their time here: small numbers, the common
    case, come from a table, and a record without headers needs no call.
    """
    parts: list[bytes] = []
    append = parts.append
    small, count = _SMALL_VARINTS, _SMALL_COUNT
    join = b"".join
    for delta, (_, timestamp, key, value, headers) in enumerate(records):
        time_delta = timestamp - base_timestamp
        if key is None:
            key_size, key = b"\1", b""
        else:
            size = len(key)
            key_size = small[size] if size < count else _varint(size)
        if value is None:
            value_size, value = b"\1", b""
        else:
            size = len(value)
            value_size = small[size] if size < count else _varint(size)
        encoded = join(
            (
                b"\0",
                small[time_delta] if 0 <= time_delta < count else _varint(time_delta),
                small[delta] if delta < count else _varint(delta),
                key_size,
                key,
                value_size,
                value,
                _encode_headers(headers) if headers else b"\0",
            )
        )
        size = len(encoded)
        append(small[size] if size < count else _varint(size))
        append(encoded)
    return join(parts)


def _encode_headers(headers: Headers) -> bytes:
    """Their count, then names and values."""
    out = bytearray()
    _write_varint(out, len(headers))
    for name, value in headers:
        _write_bytes(out, name.encode("utf-8", _KEY_ERRORS))
        _write_bytes(out, value)
    return bytes(out)


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # -1 as a zig-zag varint
        return
    _write_varint(out, len(data))
    out += data


def _write_varint(out: bytearray, number: int) -> None:
    value = (number << 1) ^ (number >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _varint(number: int) -> bytes:
    out = bytearray()
    _write_varint(out, number)
    return bytes(out)


_SMALL_COUNT: Final = 2048
_SMALL_VARINTS: Final = tuple(
    bytes((number << 1,)) if number < 64 else bytes((number << 1 & 0x7F | 0x80, number >> 6))
    for number in range(_SMALL_COUNT)
)
