"""Splits stored bytes into batches for readers of committed records, with limits on their size."""

from collections.abc import Iterator, Sequence
from typing import Final

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.slices import FileSlice
from moldau.records.batch import HEADER_BYTES, BatchFormatError, BatchHeader, read_header
from moldau.records.record import Record, read_records
from moldau.replica.aborted_transactions import AbortedTransaction

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a decompressed batch."""
BATCH_RECORDS_MAX: Final = 200_000
"""As objects, the smallest records take thirty times their size in a batch."""


def bytes_of(data: FileSlice | bytes) -> bytes:
    """The bytes that a read of a log refers to. Raises RefusedError."""
    if isinstance(data, bytes):
        return data
    try:
        return data.file.pread(data.size, data.position)
    except OSError as error:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"Cannot read the log: {error}") from None


def stored_batches(
    stored: bytes, aborted: Sequence[AbortedTransaction]
) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """Every complete batch; without its bytes if it is a marker or was aborted.

    Raises BatchFormatError.
    """
    position = 0
    while len(stored) - position >= HEADER_BYTES:
        header = read_header(stored, position)
        end = position + header.size
        if end > len(stored):
            return
        is_visible = not header.is_control and not any(
            span.producer_id == header.producer_id and span.first <= header.base_offset <= span.last
            for span in (aborted if header.is_transactional else ())
        )
        yield header, stored[position:end] if is_visible else None
        position = end


def open_batch(header: BatchHeader, batch: bytes) -> list[Record]:
    """Its records. Raises BatchFormatError, also above the limits."""
    count = header.record_count
    if count > BATCH_RECORDS_MAX:
        raise BatchFormatError(f"the batch has {count} records; the limit is {BATCH_RECORDS_MAX}")
    return read_records(batch, bytes_max=BATCH_BYTES_MAX)


def bytes_in(record: Record) -> int:
    """The size of key, value and headers."""
    _, _, key, content, headers = record
    size = (len(key) if key else 0) + (len(content) if content else 0)
    for name, value in headers:
        size += len(name) + (len(value) if value else 0)
    return size
