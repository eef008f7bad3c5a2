"""Record batches: the check of produced data, the records inside, compression, compaction.

Random bytes never have the right checksum, so the targets write it themselves: an attacker can.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from fuzz.samples import batch
from fuzz.target import KIBIBYTE, MEBIBYTE, Target, check
from moldau.model.errors import RefusedError
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchFormatError,
    check_batches,
    read_header,
    seal_batch,
    stamp,
    stamp_append_time,
)
from moldau.records.compact import emptied_batch, keep_records, scan_records
from moldau.records.compression import Codec, compress, decompress
from moldau.records.control import EndMarker, build_end_marker, read_end_marker
from moldau.records.record import build_batch, has_null_key, open_body, read_records, recompress

_DECOMPRESSED_BYTES_MAX: Final = 4 * MEBIBYTE
"""Far below the product's own limit, so that a codec that ignores it is noticed."""
_LENGTH: Final = struct.Struct(">i")


def sealed(data: bytes) -> bytes:
    """The input as one batch with the right length, magic and checksum."""
    made = bytearray(data.ljust(HEADER_BYTES, b"\0"))
    _LENGTH.pack_into(made, 8, len(made) - 12)
    made[MAGIC_AT] = MAGIC
    return seal_batch(made)


def _check_produced(data: bytes) -> None:
    """What a producer sends is checked, stamped and found again, whatever it contains."""
    with memoryview(data) as view, suppress(RefusedError):
        check_batches(view, bytes_max=1 * MEBIBYTE)
    made = sealed(data)
    headers = check_batches(memoryview(made), bytes_max=1 * MEBIBYTE)
    check(sum(header.size for header in headers) == len(made), "batches do not fill their data")
    stored = bytearray(made)
    stamp(stored, 0, 5, 7)
    stamp_append_time(stored, 0, headers[0].size, 9)
    again = read_header(stored)
    check(again.base_offset == 5 and again.max_timestamp == 9, "a stamp is not read back")


def _read(data: bytes) -> None:
    made = sealed(data)
    found = read_records(made, bytes_max=_DECOMPRESSED_BYTES_MAX)
    has_null = has_null_key(made, bytes_max=_DECOMPRESSED_BYTES_MAX)
    check(has_null == any(record.key is None for record in found), "null keys are counted wrong")
    if found:
        # Dead letters, redrives and replays write again what they have read.
        copy = build_batch(found)
        check(
            [record[1:] for record in read_records(copy)] == [record[1:] for record in found],
            "records change when they are written again",
        )
    for codec in Codec:
        recompressed = recompress(made, codec, bytes_max=_DECOMPRESSED_BYTES_MAX)
        check(read_records(recompressed) == found, "records change when they are recompressed")


def _compact(data: bytes) -> None:
    made = sealed(data)
    header = read_header(made)
    body = open_body(made, header, bytes_max=_DECOMPRESSED_BYTES_MAX)
    spans = scan_records(body, header)
    kept = [place for place in range(len(spans.ends)) if place % 2 == 0]
    if kept:
        smaller = keep_records(header, body, spans, kept)
        check(read_header(smaller).record_count == len(kept), "compaction kept another count")
    check(read_header(emptied_batch(header)).record_count == 0, "an emptied batch has records")


def _decompress(data: bytes) -> None:
    if not data:
        return
    out = decompress(Codec(data[0] % 5), data[1:], _DECOMPRESSED_BYTES_MAX)
    check(len(out) <= _DECOMPRESSED_BYTES_MAX, "more was decompressed than allowed")


def _read_marker(data: bytes) -> None:
    read_end_marker(sealed(data))


def _batch_seeds() -> Iterator[tuple[str, bytes]]:
    for codec in Codec:
        yield codec.name.lower(), batch(codec)
    yield (
        "transactional",
        batch(
            transactional=True,
            producer_id=ProducerId(9),
            producer_epoch=ProducerEpoch(1),
            base_sequence=4,
        ),
    )
    yield "two", batch() + batch(base_offset=Offset(2))


def _compressed_seeds() -> Iterator[tuple[str, bytes]]:
    for codec in Codec:
        yield codec.name.lower(), bytes((codec,)) + compress(codec, b"abcdefgh" * 20)
    # A bomb: few bytes that become more than is allowed.
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, bytes(_DECOMPRESSED_BYTES_MAX + 1))
        if len(packed) < 5 * KIBIBYTE:
            yield f"{codec.name.lower()}-bomb", bytes((codec,)) + packed


def _marker_seeds() -> Iterator[tuple[str, bytes]]:
    for is_commit in (False, True):
        marker = EndMarker(is_commit, 3)
        made = build_end_marker(ProducerId(7), ProducerEpoch(1), marker, TimestampMs(1))
        yield ("commit" if is_commit else "abort"), made


TARGETS: Final = [
    Target(
        name="records-check",
        about="what a producer sends, as the broker checks it",
        run=_check_produced,
        allowed=(RefusedError,),
        seeds=_batch_seeds,
    ),
    Target(
        name="records-read",
        about="records inside a batch",
        run=_read,
        allowed=(BatchFormatError,),
        seeds=_batch_seeds,
    ),
    Target(
        name="records-compact",
        about="a batch that is compacted",
        run=_compact,
        allowed=(BatchFormatError,),
        seeds=_batch_seeds,
    ),
    Target(
        name="records-decompress",
        about="compressed data, and bombs",
        run=_decompress,
        allowed=(BatchFormatError,),
        seeds=_compressed_seeds,
        bytes_max=16 * KIBIBYTE,
    ),
    Target(
        name="records-markers",
        about="markers that end transactions",
        run=_read_marker,
        allowed=(BatchFormatError,),
        seeds=_marker_seeds,
        bytes_max=512,
    ),
]
