"""The flush mark: metadata of a segment file, in the page before its batches.

The mark distinguishes a torn tail from corruption. It is written just before each flush of the file
and made durable by that same flush, so it needs no flush of its own:

- everything below `flushed_offset` was flushed by an earlier flush. Bad bytes there: corruption.
- nothing at or above `covered_offset` was ever counted as flushed: a later flush would have left a
  later mark. With flush=always those bytes were never acknowledged, so they may be torn in any
  way, and are truncated.
- between the two is the last flush. It may be incomplete, so its bytes may be torn.

The page has two slots. The last mark known to be durable is never overwritten, so that it survives
a torn write of the next one.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from moldau.model.ids import Offset, TimestampMs

HEADER_BYTES = 4096
"""Batches begin here: the mark has a page of its own, so no data page is torn with it."""
SLOT_BYTES = 2048
MAGIC = b"MoSg"
VERSION = 1

FLAG_CLEAN = 1
"""The log was closed cleanly: it ends at covered_offset, the file at end_position."""
FLAG_STRICT = 2
"""Flush policy `always`: bytes above covered_offset were never acknowledged."""

_MARK = struct.Struct(">4sHHqqqqqqqqqI")
_CRC = struct.Struct(">I")


class FlushMark(NamedTuple):
    """One mark. Sequences increase over all segments of a log: the highest is the newest."""

    flags: int
    sequence: int
    base_offset: Offset
    flushed_offset: Offset
    flushed_position: int
    """Position of flushed_offset in this file; 0 if it is in an earlier segment."""
    covered_offset: Offset
    end_position: int
    """Position of covered_offset in this file."""
    control_count: int
    """Control entries known to be durable: fewer in the journal is corruption."""
    first_timestamp: TimestampMs
    max_timestamp: TimestampMs
    epochs_crc: int
    """Checksum of the epochs that begin with a batch; 0: there are none."""

    @property
    def is_clean(self) -> bool:
        return self.flags & FLAG_CLEAN != 0

    @property
    def is_strict(self) -> bool:
        return self.flags & FLAG_STRICT != 0


def encode_mark(mark: FlushMark) -> bytes:
    body = _MARK.pack(MAGIC, VERSION, *mark)
    return body + _CRC.pack(crc32c(body))


def decode_mark(page: bytes, base_offset: Offset) -> tuple[FlushMark | None, int]:
    """The newest intact mark of a segment's first page, and the slot for the next one."""
    best: FlushMark | None = None
    free = 0
    for position in (0, SLOT_BYTES):
        if len(page) < position + _MARK.size + _CRC.size:
            continue
        magic, version, *fields = _MARK.unpack_from(page, position)
        if magic != MAGIC or version != VERSION:
            continue
        (crc,) = _CRC.unpack_from(page, position + _MARK.size)
        if crc32c(page[position : position + _MARK.size]) != crc:
            continue
        mark = FlushMark(*fields)
        if mark.base_offset == base_offset and (best is None or mark.sequence > best.sequence):
            best = mark
            free = SLOT_BYTES - position
    return best, free
