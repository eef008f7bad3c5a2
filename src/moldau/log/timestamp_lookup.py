"""Finds a record by timestamp inside one batch: the slow end of a timestamp lookup."""

from moldau.log.interface import TimestampedOffset
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import BatchFormatError, crc_matches, read_header
from moldau.records.record import read_records


def find_in_batch(
    batch: bytes, timestamp: TimestampMs, start_offset: Offset, end_offset: Offset
) -> TimestampedOffset | None:
    """First record of the batch with at least that timestamp, within start_offset…end_offset."""
    header = read_header(batch)
    if not crc_matches(batch, 0, header.size, header.crc):
        raise CorruptionError(f"checksum mismatch in the batch at offset {header.base_offset}")
    try:
        records = read_records(batch)
    except BatchFormatError:
        # Batches are opaque: a client may have sent malformed records with a valid checksum. Then
        # only the header is known, and the replica need not stop.
        offset = max(header.base_offset, start_offset)
        return TimestampedOffset(offset, header.max_timestamp, header.leader_epoch)
    for record in records:
        if record.offset >= end_offset:
            return None
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimestampedOffset(record.offset, record.timestamp, header.leader_epoch)
    return None
