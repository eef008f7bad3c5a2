"""A run: whole batches that follow each other without a gap, as logs store and backups keep them.

Offsets of a log have no gaps between batches: compaction leaves empty batches (`records/compact`).
So a run is checked by its headers and checksums alone, whatever its records are.
"""

from typing import Final

from moldau.model.ids import NO_TIMESTAMP, Epoch, Offset
from moldau.records.batch import (
    HEADER_BYTES,
    BatchFormatError,
    BatchHeader,
    Buffer,
    crc_matches,
    read_header,
)
from moldau.records.compact import empty_batch

_SPAN_MAX: Final = 2**31 - 1
"""Offsets that one empty batch can stand for."""
FILLERS_MAX: Final = 4096
"""So many of them reach beyond 2**42 offsets, in 250 KB."""


def read_run(data: Buffer, offset: int) -> list[BatchHeader]:
    """The headers of a run that begins at `offset`. Raises BatchFormatError."""
    headers = []
    position = 0
    end = len(data)
    while position < end:
        if end - position < HEADER_BYTES:
            raise BatchFormatError(f"{end - position} bytes after the last batch")
        header = read_header(data, position)
        if position + header.size > end:
            raise BatchFormatError(f"the batch at offset {header.base_offset} is not complete")
        if header.base_offset != offset:
            raise BatchFormatError(
                f"the batch after offset {offset - 1} begins at {header.base_offset}"
            )
        if not crc_matches(data, position, header.size, header.crc):
            raise BatchFormatError(f"checksum mismatch in the batch at offset {offset}")
        headers.append(header)
        offset = header.next_offset
        position += header.size
    return headers


def filler_run(start: int, end: int) -> bytes:
    """Empty batches for the offsets from `start` to before `end`: of records that are not there."""
    if (end - start) > FILLERS_MAX * _SPAN_MAX:
        raise BatchFormatError(f"offset {end} is too far from {start}")
    fillers = bytearray()
    while start < end:
        following = min(end, start + _SPAN_MAX)
        fillers += empty_batch(Offset(start), Offset(following), Epoch(0), NO_TIMESTAMP)
        start = following
    return bytes(fillers)
