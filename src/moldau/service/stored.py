"""Owns how stored bytes become batches for those who read committed: which of them may be seen."""

import os
from collections.abc import Iterator, Sequence

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.slices import FileSlice
from moldau.records.batch import HEADER_BYTES, BatchHeader, read_header
from moldau.replica.aborted import AbortedTransaction


def bytes_of(data: FileSlice | bytes) -> bytes:
    """What a log's read points to. Raises RefusedError."""
    if isinstance(data, bytes):
        return data
    try:
        return os.pread(data.file.fileno(), data.size, data.position)
    except OSError as error:
        raise RefusedError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"The log cannot be read: {error}"
        ) from None


def stored_batches(
    stored: bytes, aborted: Sequence[AbortedTransaction]
) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """Every whole batch; without its bytes if it is a marker, or of a transaction that was aborted.

    Raises BatchFormatError.
    """
    position = 0
    while len(stored) - position >= HEADER_BYTES:
        header = read_header(stored, position)
        end = position + header.size
        if end > len(stored):
            return
        is_seen = not header.is_control and not any(
            span.producer_id == header.producer_id and span.first <= header.base_offset <= span.last
            for span in (aborted if header.is_transactional else ())
        )
        yield header, stored[position:end] if is_seen else None
        position = end
