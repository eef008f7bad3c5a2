"""Finds the readable batches in fetched bytes: complete, with a valid checksum, decompressed.

Parses only batch headers. Skips control batches, and with read_committed aborted ones.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from moldau.records.batch import (
    HEADER_BYTES,
    LENGTH_END,
    BatchFormatError,
    BatchHeader,
    crc_matches,
    read_header,
)
from moldau.records.compression import Codec
from moldau.records.control import read_end_marker
from moldau.records.record import open_body
from moldau.wire.messages.fetch import FetchAbortedTransaction

PART_BYTES_MIN: Final = 16 * 1024 * 1024
"""How much is decompressed (or one batch, if it is larger) before it is yielded."""

Strings = tuple[int, int, Any, Any, Any]
"""A column of bytes: count, null count, then buffers: validity, offsets, data."""
Lists = tuple[int, Any, Any, Strings, Strings]
"""Headers: how many records have none, then buffers: validity, offsets; then names and values."""
DecodedColumns = tuple[int, Any, Any, Any, Strings, Strings, Lists | None]
"""Record count, then buffers: offsets, timestamps in µs, timestamp types; keys, values, headers."""


class FetchedBatch(NamedTuple):
    """A complete batch and its position in the fetched bytes."""

    position: int
    header: BatchHeader


class BatchBody(NamedTuple):
    """Where the decompressed records of one batch are in the bytes of `BatchBodies`."""

    start: int
    end: int
    header: BatchHeader


class BatchBodies(NamedTuple):
    """Records of several batches in one buffer, possibly with other bytes between them."""

    data: memoryview
    bodies: list[BatchBody]
    start: int
    """The first offset to read: earlier records only share a batch with later ones."""
    packed: bytearray | None = None
    """The result of `compiled.scan`, instead of `bodies`."""


def whole_batches(fetched: memoryview, end: int | None = None) -> list[FetchedBatch]:
    """The complete batches: brokers may truncate the last one. Raises BatchFormatError.

    Stops after the batch that reaches offset `end`.
    """
    found = []
    position = 0
    while len(fetched) - position >= HEADER_BYTES:
        length = int.from_bytes(fetched[position + 8 : position + LENGTH_END], "big", signed=True)
        if position + LENGTH_END + length > len(fetched):
            break
        header = read_header(fetched, position)
        found.append(FetchedBatch(position, header))
        position += header.size
        if end is not None and header.next_offset >= end:
            break
    return found


def readable_bodies(
    fetched: memoryview,
    batches: Sequence[FetchedBatch],
    aborted: Sequence[FetchAbortedTransaction],
    *,
    start: int,
    end: int,
) -> Iterator[BatchBodies]:
    """The bodies of `batches` that hold readable offsets from `start` to before `end`.

    `aborted` is empty for read_uncommitted. Decompressed batches may be many times as large as the
    fetched bytes, so they come in several parts. Raises BatchFormatError.
    """
    kept = _without_aborted(fetched, batches, aborted) if aborted else batches
    chosen = []
    is_compressed = False
    for placed in kept:
        header = placed.header
        if header.is_control or header.last_offset < start or header.base_offset >= end:
            continue
        if not crc_matches(fetched, placed.position, header.size, header.crc):
            raise BatchFormatError(f"checksum mismatch of the batch at offset {header.base_offset}")
        is_compressed |= header.codec != Codec.NONE
        chosen.append(placed)
    if is_compressed:
        yield from _decompressed(fetched, chosen, start)
    elif chosen:
        bodies = [
            BatchBody(p.position + HEADER_BYTES, p.position + p.header.size, p.header)
            for p in chosen
        ]
        yield BatchBodies(fetched, bodies, start)


def _decompressed(
    fetched: memoryview, chosen: Sequence[FetchedBatch], start: int
) -> Iterator[BatchBodies]:
    parts: list[bytes] = []
    bodies: list[BatchBody] = []
    position = 0
    for placed in chosen:
        if position >= PART_BYTES_MIN:
            yield BatchBodies(memoryview(b"".join(parts)), bodies, start)
            parts, bodies, position = [], [], 0
        header = placed.header
        part = open_body(fetched[placed.position :], header)
        parts.append(part)
        bodies.append(BatchBody(position, position + len(part), header))
        position += len(part)
    yield BatchBodies(memoryview(b"".join(parts)), bodies, start)


def _without_aborted(
    fetched: memoryview, batches: Sequence[FetchedBatch], aborted: Sequence[FetchAbortedTransaction]
) -> list[FetchedBatch]:
    """Drops a producer's batches from the start of an aborted transaction to its abort marker."""
    ahead = [(entry.first_offset, entry.producer_id) for entry in aborted]
    heapq.heapify(ahead)
    aborting: set[int] = set()
    kept = []
    for placed in batches:
        header = placed.header
        while ahead and ahead[0][0] <= header.last_offset:
            aborting.add(heapq.heappop(ahead)[1])
        if header.is_control:
            marker = read_end_marker(fetched, placed.position)
            if marker is not None and not marker.is_commit:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            kept.append(placed)
    return kept
