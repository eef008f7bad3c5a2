"""Writes the leader's fields into batches before they are stored: offset, epoch, append time."""

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TIMESTAMP, Epoch, Offset, TimestampMs
from moldau.records.batch import BatchHeader, place, stamp_append_time


def stamp_all(
    data: bytearray | memoryview,
    headers: list[BatchHeader],
    offset: Offset,
    epoch: Epoch,
    append_time: TimestampMs,
) -> tuple[list[BatchHeader], int, Offset]:
    """Stamp consecutive batches and their headers; returns these, the size and the next offset."""
    position = 0
    for header in headers:
        place(data, position, header, offset, epoch)
        if append_time != NO_TIMESTAMP:
            stamp_append_time(data, position, header.size, append_time)
            header.max_timestamp = append_time
        position += header.size
        offset = header.next_offset
    return headers, position, offset


def check_anonymous(headers: list[BatchHeader]) -> None:
    """Several batches in one request must be without sequences and transactions."""
    if any(header.producer_id >= 0 for header in headers):
        raise RefusedError(
            ErrorCode.INVALID_RECORD,
            "an idempotent producer may send only one batch per partition in a request",
        )
