"""Finds records in the decompressed body of a batch without decoding all of them.

A search looks at millions of records and wants few. So the bytes that a record must contain are
searched for in the whole body first, and only records around them are decoded.
"""

from typing import NamedTuple

from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import (
    RECORD_BYTES_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    BatchFormatError,
    BatchHeader,
)
from moldau.records.record import Headers, Record, read_bytes, read_headers, read_varint

# What a NamedTuple's own constructor does, without its call.
_new = tuple.__new__


class RecordPlace(NamedTuple):
    """Where a record is in the body: from its key on, up to its end."""

    offset: Offset
    timestamp: TimestampMs
    key_at: int
    end: int


def find_places(
    header: BatchHeader, body: bytes, needle: bytes, first: int, last: int
) -> list[RecordPlace]:
    """The records from offset `first` to `last` around the places of `needle`; all, if it is empty.

    Lengths and offset deltas of the others are followed. Raises BatchFormatError.
    """
    found: list[RecordPlace] = []
    size = len(body)
    needle_at = body.find(needle)
    position = 0
    delta_last = -1
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    try:
        for _ in range(header.record_count):
            if needle_at < 0:
                # What follows is not wanted.
                return found
            length = body[position]
            if length < 0x80:
                length = (length >> 1) ^ -(length & 1)
                position += 1
            elif body[position + 1] < 0x80:
                # Two bytes: records of up to 8 KiB.
                length = (length & 0x7F) | body[position + 1] << 7
                length = (length >> 1) ^ -(length & 1)
                position += 2
            else:
                length, position = read_varint(body, position)
            end = position + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise BatchFormatError(f"record of {length} bytes, {size - position} left")
            if needle_at >= end:
                position = end
                continue
            # Numbers of one and two bytes, the common case, are read without a call.
            at = position + 1
            timestamp_delta = body[at]
            if timestamp_delta < 0x80:
                timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
                at += 1
            else:
                timestamp_delta, at = read_varint(body, at)
            delta = body[at]
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
                at += 1
            elif body[at + 1] < 0x80:
                delta = (delta & 0x7F) | body[at + 1] << 7
                delta = (delta >> 1) ^ -(delta & 1)
                at += 2
            else:
                delta, at = read_varint(body, at)
            if not delta_last < delta <= header.last_offset_delta:
                raise BatchFormatError(f"offset delta {delta} after {delta_last}")
            delta_last = delta
            offset = base_offset + delta
            if offset > last:
                return found
            if offset >= first:
                timestamp = (
                    header.max_timestamp
                    if header.is_append_time
                    else base_timestamp + timestamp_delta
                )
                if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                    raise BatchFormatError(f"timestamp {timestamp} has more than 64 bits")
                found.append(_new(RecordPlace, (offset, timestamp, at, end)))
            position = end
            if needle:
                needle_at = body.find(needle, end)
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    return found


def read_place(body: bytes, place: RecordPlace) -> Record:
    """The record there. Raises BatchFormatError."""
    offset, timestamp, position, end = place
    key: bytes | None
    value: bytes | None
    headers: Headers
    try:
        size = body[position]
        if size < 0x80 and not size & 1:
            position += 1 + (size >> 1)
            key = body[position - (size >> 1) : position]
        else:
            key, position = read_bytes(body, position, end)
        size = body[position]
        if size & 0x80 and not size & 1 and body[position + 1] < 0x80:
            size = (size & 0x7F) >> 1 | body[position + 1] << 6
            position += 2 + size
            value = body[position - size : position]
        else:
            value, position = read_bytes(body, position, end)
        if position + 1 == end and not body[position]:
            return _new(Record, (offset, timestamp, key, value, []))
        headers, position = read_headers(body, position, end)
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    if position != end:
        raise BatchFormatError(f"record ends at byte {position}, not {end}")
    return _new(Record, (offset, timestamp, key, value, headers))
