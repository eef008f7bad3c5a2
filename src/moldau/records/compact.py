"""What compaction does to one batch: find its records, keep some, or replace it by an empty one.

Records are never re-encoded. A batch that loses some of them keeps its base offset, base timestamp,
last offset delta and producer fields, so the bytes of the others stay valid and are copied in runs.
A batch that loses all of them becomes an *empty batch*: a header of 61 bytes that takes up the same
offsets. Kafka keeps such batches too, and every client skips them.

An empty batch without a producer represents only its range of offsets. So adjacent ones may be
merged (`empty_batch` over all of them), and one may be split at any offset (`split_empty`).
"""

from typing import NamedTuple

from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    BatchFormatError,
    BatchHeader,
    build_raw_batch,
)
from moldau.records.compression import Codec, compress

_NO_ID = -1


class RecordSpans(NamedTuple):
    """The positions of records in the decompressed bytes of a batch, as parallel lists."""

    ends: list[int]
    """Position after each record; a record begins where the one before it ends."""
    deltas: list[int]
    """Offset minus base offset."""
    keys: list[bytes | None]
    tombstones: list[int]
    """Indexes in these lists of the records without a value."""
    times: list[int]
    """Timestamp minus base timestamp."""


def scan_records(body: bytes, header: BatchHeader) -> RecordSpans:
    """Find the records without making an object of each. Raises BatchFormatError.

    This is most of the cost of compaction, so short numbers are read inline: nearly all of them
    have one byte, lengths two.
    """
    ends: list[int] = []
    deltas: list[int] = []
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    times: list[int] = []
    total = len(body)
    position = 0
    before = -1
    try:
        for place in range(header.record_count):
            size = body[position]
            second = body[position + 1]
            if size < 0x80:
                position += 1
            elif second < 0x80:
                size = size & 0x7F | second << 7
                position += 2
            else:
                size, position = _read_raw(body, position)
            end = position + (size >> 1)
            if size & 1 or size >> 1 < RECORD_BYTES_MIN - 1 or end > total:
                raise BatchFormatError(f"record of {size >> 1} bytes, {total - position} left")
            number = body[position + 1]
            if number < 0x80:
                position += 2
            else:
                number, position = _read_raw(body, position + 1)
            times.append((number >> 1) ^ -(number & 1))
            number = body[position]
            if number < 0x80:
                position += 1
            else:
                number, position = _read_raw(body, position)
            delta = (number >> 1) ^ -(number & 1)
            if not before < delta <= header.last_offset_delta:
                raise BatchFormatError(f"offset delta {delta} after {before}")
            deltas.append(delta)
            before = delta
            number = body[position]
            if number < 0x80:
                position += 1
            else:
                number, position = _read_raw(body, position)
            if number & 1:
                keys.append(None)
            else:
                start = position
                position += number >> 1
                keys.append(body[start:position])
            if position >= end:
                raise BatchFormatError("a key runs past the end of its record")
            # Zig-zag: the negative numbers, of which only -1 is a length, are odd.
            if body[position] & 1:
                tombstones.append(place)
            ends.append(end)
            position = end
    except IndexError:
        raise BatchFormatError("a number runs past the end of the batch") from None
    if position != total:
        raise BatchFormatError(f"{total - position} bytes after the last record")
    _check_times(times, header.base_timestamp)
    return RecordSpans(ends, deltas, keys, tombstones, times)


def _check_times(times: list[int], base: int) -> None:
    if times and not TIMESTAMP_MIN - base <= min(times) <= max(times) <= TIMESTAMP_MAX - base:
        raise BatchFormatError("a timestamp has more than 64 bits")


def _read_raw(data: bytes, position: int) -> tuple[int, int]:
    """A varint before zig-zag decoding, and the position after it. IndexError at the end."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise BatchFormatError("number longer than 64 bits")


def keep_records(header: BatchHeader, body: bytes, spans: RecordSpans, kept: list[int]) -> bytes:
    """The batch with only the `kept` records, given by index in `spans`; at least one."""
    ends = spans.ends
    pieces: list[bytes] = []
    run_start = run_end = -1
    for place in kept:
        start = ends[place - 1] if place else 0
        if start != run_end:
            if run_end > run_start:
                pieces.append(body[run_start:run_end])
            run_start = start
        run_end = ends[place]
    pieces.append(body[run_start:run_end])
    if header.is_append_time:
        largest = header.max_timestamp
    else:
        times = spans.times
        largest = TimestampMs(header.base_timestamp + max(times[place] for place in kept))
    payload = compress(Codec(header.codec), b"".join(pieces))
    return build_raw_batch(header.replaced(max_timestamp=largest, record_count=len(kept)), payload)


def empty_batch(
    base_offset: Offset, next_offset: Offset, leader_epoch: Epoch, max_timestamp: TimestampMs
) -> bytes:
    """A batch without records for a range of offsets.

    It has the largest timestamp of what it replaces, which retention by time uses.
    """
    header = BatchHeader(
        base_offset,
        HEADER_BYTES,
        leader_epoch,
        0,
        0,
        next_offset - base_offset - 1,
        max_timestamp,
        max_timestamp,
        ProducerId(_NO_ID),
        ProducerEpoch(_NO_ID),
        _NO_ID,
        0,
    )
    return build_raw_batch(header, b"")


def emptied_batch(header: BatchHeader) -> bytes:
    """The batch without its records, but with its producer and sequence."""
    attributes = header.attributes & ~CODEC_MASK
    return build_raw_batch(header.replaced(record_count=0, attributes=attributes), b"")


def is_filler(header: BatchHeader) -> bool:
    """Whether a batch represents only its offsets, and may be split or merged."""
    return header.record_count == 0 and header.producer_id < 0


def split_empty(header: BatchHeader, offset: Offset) -> tuple[bytes, bytes]:
    """Split a filler at an offset inside of it."""
    if not is_filler(header) or not header.base_offset < offset < header.next_offset:
        raise BatchFormatError(f"the batch at {header.base_offset} cannot be split at {offset}")
    epoch, time = header.leader_epoch, header.max_timestamp
    return (
        empty_batch(header.base_offset, offset, epoch, time),
        empty_batch(offset, header.next_offset, epoch, time),
    )
