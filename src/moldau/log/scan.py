"""Scans the batches of a segment file, chunk by chunk, with and without checksums.

A scan ends at the first bytes that do not continue the log. Recovery decides what they are.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from moldau.log.filesystem import File
from moldau.model.ids import NO_TIMESTAMP, Epoch, Offset, TimestampMs
from moldau.records.batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    BatchFormatError,
    BatchHeader,
    crc_matches,
    read_header,
)

CHUNK_BYTES = 1024 * 1024
_SEARCH_BYTES_MAX = 64 * 1024 * 1024
_MAGIC_BYTE = bytes([MAGIC])
_peek = struct.Struct(">qi").unpack_from
_peek_long = struct.Struct(">qiibIhiqq").unpack_from


class LocatedBatch(NamedTuple):
    """A batch header and its position in the file."""

    position: int
    header: BatchHeader


def walk_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[LocatedBatch]:
    """Headers of the batches from `position` to `end`; stops where there is no valid header."""
    chunk = b""
    chunk_start = position
    while position + HEADER_BYTES <= end:
        at = position - chunk_start
        if at < 0 or at + HEADER_BYTES > len(chunk):
            chunk = file.pread(min(chunk_bytes, end - position), position)
            chunk_start, at = position, 0
        try:
            header = read_header(chunk, at)
        except BatchFormatError:
            return
        if position + header.size > end:
            return
        yield LocatedBatch(position, header)
        position += header.size


def walk_batches(
    file: File, position: int, end: int
) -> Iterator[tuple[LocatedBatch, bytes | memoryview]]:
    """As walk_headers, with a view of each batch; stops at a checksum mismatch."""
    chunk = b""
    chunk_start = position
    while position + HEADER_BYTES <= end:
        at = position - chunk_start
        if at + HEADER_BYTES > len(chunk):
            chunk = file.pread(min(CHUNK_BYTES, end - position), position)
            chunk_start, at = position, 0
        try:
            header = read_header(chunk, at)
        except BatchFormatError:
            return
        size = header.size
        if position + size > end:
            return
        if at + size > len(chunk):
            chunk = file.pread(max(CHUNK_BYTES, size), position)
            chunk_start, at = position, 0
            if size > len(chunk):
                return
        if not crc_matches(chunk, at, size, header.crc):
            return
        yield LocatedBatch(position, header), memoryview(chunk)[at : at + size]
        position += size


def check_batches(file: File, position: int, end: int, limit: int) -> int:
    """Where the valid batches from `position` on end: the first boundary at or beyond `end`, or
    less, where one is corrupt. Nothing is read beyond `limit`.

    One flat loop without an object per batch: it runs in threads, beside the event loop.
    """
    chunk = memoryview(b"")
    chunk_start = chunk_end = position
    while position < end:
        if position + HEADER_BYTES > chunk_end:
            chunk = memoryview(file.pread(min(CHUNK_BYTES, limit - position), position))
            chunk_start, chunk_end = position, position + len(chunk)
            if len(chunk) < HEADER_BYTES:
                break
        at = position - chunk_start
        _, length, _, magic, crc, _, delta, _, _ = _peek_long(chunk, at)
        after = position + length + LENGTH_END
        if magic != MAGIC or length < HEADER_BYTES - LENGTH_END or after > limit or delta < 0:
            break
        if after > chunk_end:
            size = min(max(CHUNK_BYTES, after - position), limit - position)
            chunk = memoryview(file.pread(size, position))
            chunk_start, chunk_end, at = position, position + len(chunk), 0
            if after > chunk_end:
                break
        if crc32c(chunk[at + CRC_START : after - chunk_start]) != crc:
            break
        position = after
    return position


class ScanResult:
    """Result of check_run: the consecutive valid batches."""

    __slots__ = ("end", "epochs", "first_timestamp", "is_epoch_lost", "max_timestamp", "offset")

    def __init__(self, end: int, offset: Offset) -> None:
        self.end = end
        """Position after the last batch."""
        self.offset = offset
        """Offset after the last batch."""
        self.epochs: list[tuple[Epoch, Offset]] = []
        """Epoch and offset of the first batch, and of each with a new epoch."""
        self.first_timestamp: TimestampMs = NO_TIMESTAMP
        self.max_timestamp: TimestampMs = NO_TIMESTAMP
        self.is_epoch_lost = False
        """The scan ended at a batch of an unknown epoch."""


def check_run(
    file: File,
    position: int,
    offset: Offset,
    epoch: Epoch,
    note: Callable[[Offset, int, TimestampMs], int],
    is_known: Callable[[Epoch], bool],
) -> ScanResult:
    """Check every batch from `position` to the first bytes that do not continue the log.

    This determines how long a start after a crash takes, so it is one flat loop without an object
    per batch. Neither offset nor epoch is covered by a batch's checksum: offsets must be
    consecutive, epochs known and not decreasing. `note` is called for a batch when an index entry
    is due, and returns the position from which the next one is.
    """
    size = file.size()
    result = ScanResult(position, offset)
    chunk = memoryview(b"")
    chunk_start, chunk_end = position, position
    largest = NO_TIMESTAMP
    due = position
    while position + HEADER_BYTES <= size:
        if position + HEADER_BYTES > chunk_end:
            chunk = memoryview(file.pread(CHUNK_BYTES, position))
            chunk_start, chunk_end = position, position + len(chunk)
            if len(chunk) < HEADER_BYTES:
                break
        at = position - chunk_start
        base, length, batch_epoch, magic, crc, _, delta, _, time = _peek_long(chunk, at)
        end = position + length + LENGTH_END
        if (
            base != offset
            or magic != MAGIC
            or length < HEADER_BYTES - LENGTH_END
            or end > size
            or delta < 0
            or batch_epoch < epoch
        ):
            break
        if end > chunk_end:
            chunk = memoryview(file.pread(max(CHUNK_BYTES, end - position), position))
            chunk_start, chunk_end, at = position, position + len(chunk), 0
            if end > chunk_end:
                break
        if crc32c(chunk[at + CRC_START : end - chunk_start]) != crc:
            break
        if batch_epoch != epoch and not is_known(batch_epoch):
            result.is_epoch_lost = True
            break
        if position >= due:
            due = note(offset, position, largest)
        if batch_epoch != epoch:
            epoch = batch_epoch
            result.epochs.append((epoch, offset))
        if time > largest:
            largest = time
            if result.first_timestamp < 0:
                result.first_timestamp = time
        offset = Offset(base + delta + 1)
        position = end
    result.end, result.offset, result.max_timestamp = position, offset, largest
    return result


def is_zero(file: File, position: int, end: int) -> bool:
    """Whether there are only zeros: written ahead, not old bytes."""
    zeros = bytes(min(CHUNK_BYTES, max(0, end - position)))
    while position < end:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if not data:
            return True
        if data != zeros[: len(data)]:
            return False
        position += len(data)
    return True


def find_valid_batch(file: File, position: int, end: int, offset: Offset) -> int | None:
    """Position of an intact batch of the log beyond a bad one that begins at `position`."""
    # A power failure may leave a file that ends before its first batch.
    data = file.pread(max(0, min(end - position, _SEARCH_BYTES_MAX)), position)
    if len(data) > LENGTH_END:
        # A flipped bit in the records leaves the length intact: try the next batch first.
        _, length = _peek(data)
        following = int(length) + LENGTH_END
        if following > LENGTH_END and _is_valid_at(data, following, offset):
            return position + following
    magic = data.find(_MAGIC_BYTE, MAGIC_AT + 1)
    while magic >= 0:
        if _is_valid_at(data, magic - MAGIC_AT, offset):
            return position + magic - MAGIC_AT
        magic = data.find(_MAGIC_BYTE, magic + 1)
    return None


def _is_valid_at(data: bytes, at: int, offset: Offset) -> bool:
    if at + HEADER_BYTES > len(data):
        return False
    base, length = _peek(data, at)
    # Cheap tests first: most candidates are payload bytes.
    if not offset < base < offset + (1 << 40) or not 0 < length <= len(data) - at - LENGTH_END:
        return False
    try:
        header = read_header(data, at)
    except BatchFormatError:
        return False
    return crc_matches(data, at, header.size, header.crc)
