"""Responsible for what counts of fetched bytes: whole batches, checked, decompressed.

Goes through the headers of batches one by one, of which there are few, and decides per batch:
control batches hold nothing to read, and neither do batches of aborted transactions for readers of
what is committed. It looks at no record.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from moldau.model.limits import DECOMPRESSED_BYTES_MAX
from moldau.records.batch import (
    HEADER_BYTES,
    LENGTH_END,
    BatchFormatError,
    BatchHeader,
    crc_matches,
    read_header,
)
from moldau.records.compact import open_body
from moldau.records.compression import Codec
from moldau.records.control import read_end_marker
from moldau.wire.messages.fetch import FetchAbortedTransaction

PART_BYTES_MIN: Final = 16 * 1024 * 1024
"""So much is decompressed, or one batch that is larger, before it is handed on."""


class FetchedBatch(NamedTuple):
    """A whole batch, and where it stands in the fetched bytes."""

    position: int
    header: BatchHeader


class Body(NamedTuple):
    """The records of one batch, decompressed, at their place in the bytes of `BatchBodies`."""

    start: int
    end: int
    header: BatchHeader


class BatchBodies(NamedTuple):
    """Records of several batches in one run of bytes, with other bytes between them or not."""

    data: memoryview
    bodies: list[Body]
    start: int
    """Records before it were read, or deleted, and only share a batch with those that are asked
    for."""
    packed: bytearray | None = None
    """What `compiled.scan` found, in place of `bodies`."""


def whole_batches(fetched: memoryview, end: int | None = None) -> list[FetchedBatch]:
    """The batches that came as a whole: brokers may cut the last one off. Raises BatchFormatError.

    Batches behind the one that reaches offset `end` are not looked at.
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
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[BatchBodies]:
    """What of `batches` holds offsets from `start` to before `end` that a reader gets to see.

    `aborted` is empty for readers of everything. Compressed batches may be many times as large as
    what was fetched, so they come in several parts. Raises BatchFormatError.
    """
    kept = _without_aborted(fetched, batches, aborted) if aborted else batches
    chosen = []
    is_compressed = False
    for placed in kept:
        header = placed.header
        if header.is_control or header.last_offset < start or header.base_offset >= end:
            continue
        if not crc_matches(fetched, placed.position, header.size, header.crc):
            raise BatchFormatError(
                f"the checksum of the batch at offset {header.base_offset} does not match"
            )
        is_compressed |= header.codec != Codec.NONE
        chosen.append(placed)
    if is_compressed:
        yield from _decompressed(fetched, chosen, start, bytes_max)
    elif chosen:
        bodies = [
            Body(p.position + HEADER_BYTES, p.position + p.header.size, p.header) for p in chosen
        ]
        yield BatchBodies(fetched, bodies, start)


def _decompressed(
    fetched: memoryview, chosen: Sequence[FetchedBatch], start: int, bytes_max: int
) -> Iterator[BatchBodies]:
    parts: list[bytes] = []
    bodies: list[Body] = []
    position = 0
    for placed in chosen:
        if position >= PART_BYTES_MIN:
            yield BatchBodies(memoryview(b"".join(parts)), bodies, start)
            parts, bodies, position = [], [], 0
        header = placed.header
        part = open_body(fetched[placed.position :], header, bytes_max=bytes_max)
        parts.append(part)
        bodies.append(Body(position, position + len(part), header))
        position += len(part)
    yield BatchBodies(memoryview(b"".join(parts)), bodies, start)


def _without_aborted(
    fetched: memoryview, batches: Sequence[FetchedBatch], aborted: Sequence[FetchAbortedTransaction]
) -> list[FetchedBatch]:
    """A producer's records do not count from the start of its transaction to the abort marker."""
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
