"""Fetched bytes: whole batches are found, checked and sorted out by what readers get to see."""

import pytest

from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import HEADER_BYTES, BatchFormatError
from moldau.records.compression import Codec
from moldau.records.control import EndMarker, build_end_marker
from moldau.records.record import Record, build_batch
from moldau.spark.source.fetched_batches import (
    PART_BYTES_MIN,
    BatchBodies,
    readable_bodies,
    whole_batches,
)
from moldau.wire.messages.fetch import FetchAbortedTransaction

NOW = TimestampMs(1_700_000_000_000)


def batch(base: int, count: int = 1, *, producer: int = -1, codec: Codec = Codec.NONE) -> bytes:
    return build_batch(
        [Record(Offset(0), NOW, b"k", b"v%d" % (base + n), []) for n in range(count)],
        base_offset=Offset(base),
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(0 if producer >= 0 else -1),
        base_sequence=0 if producer >= 0 else -1,
        transactional=producer >= 0,
        codec=codec,
    )


def marker(base: int, producer: int, *, is_commit: bool) -> bytes:
    made = bytearray(
        build_end_marker(ProducerId(producer), ProducerEpoch(0), EndMarker(is_commit, 0), NOW)
    )
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def readable(
    data: bytes, *aborted: tuple[int, int], start: int = 0, end: int = 1 << 62
) -> BatchBodies:
    fetched = memoryview(data)
    entries = [
        FetchAbortedTransaction(producer_id=producer, first_offset=first)
        for producer, first in aborted
    ]
    (found,) = readable_bodies(fetched, whole_batches(fetched), entries, start=start, end=end)
    return found


def offsets(found: BatchBodies) -> list[int]:
    return [body.header.base_offset for body in found.bodies]


def test_a_batch_that_was_cut_off_is_left_for_the_next_fetch() -> None:
    data = batch(0, 3) + batch(3, 2)
    assert [p.header.base_offset for p in whole_batches(memoryview(data[:-1]))] == [0]
    assert [p.header.base_offset for p in whole_batches(memoryview(data))] == [0, 3]
    assert whole_batches(memoryview(data[:30])) == []
    assert whole_batches(memoryview(b"")) == []


def test_batches_behind_the_end_are_not_looked_at() -> None:
    data = memoryview(batch(0, 3) + batch(3, 2) + batch(5, 2))
    assert [p.header.base_offset for p in whole_batches(data, 4)] == [0, 3]
    assert [p.header.base_offset for p in whole_batches(data, 5)] == [0, 3]
    assert [p.header.base_offset for p in whole_batches(data, 6)] == [0, 3, 5]


def test_what_is_no_batch_is_refused() -> None:
    data = bytearray(batch(0))
    data[16] = 1  # An older format.
    with pytest.raises(BatchFormatError, match="magic 1"):
        whole_batches(memoryview(data))


def test_a_wrong_checksum_is_refused_and_names_the_offset() -> None:
    data = bytearray(batch(0) + batch(7))
    data[-1] ^= 1
    with pytest.raises(BatchFormatError, match="offset 7"):
        readable(bytes(data))


def test_batches_outside_of_the_range_are_not_even_looked_at() -> None:
    data = bytearray(batch(0, 5) + batch(5, 5) + batch(10, 5))
    data[HEADER_BYTES] ^= 1
    data[-1] ^= 1
    assert offsets(readable(bytes(data), start=5, end=10)) == [5]


def test_compressed_batches_stand_beside_plain_ones() -> None:
    found = readable(batch(0, 3, codec=Codec.ZSTD) + batch(3, 2) + batch(5, 1, codec=Codec.LZ4))
    assert offsets(found) == [0, 3, 5]
    assert sum(body.header.record_count for body in found.bodies) == 6
    plain = readable(batch(0, 3) + batch(3, 2) + batch(5, 1))
    assert [bytes(found.data[b.start : b.end]) for b in found.bodies] == [
        bytes(plain.data[b.start : b.end]) for b in plain.bodies
    ]


def test_what_grows_when_it_is_decompressed_comes_in_parts() -> None:
    value = bytes(PART_BYTES_MIN // 2)
    big = [Record(Offset(0), NOW, b"k", value, [])]
    data = b"".join(
        build_batch(big, base_offset=Offset(base), codec=Codec.ZSTD) for base in range(5)
    )
    fetched = memoryview(data)
    parts = list(readable_bodies(fetched, whole_batches(fetched), [], start=0, end=5))
    assert [offsets(part) for part in parts] == [[0, 1], [2, 3], [4]]


def test_markers_hold_nothing_to_read() -> None:
    data = batch(0, 2, producer=7) + marker(2, 7, is_commit=True) + batch(3)
    assert offsets(readable(data)) == [0, 3]


def test_an_aborted_transaction_is_left_out_up_to_its_marker() -> None:
    data = (
        batch(0)
        + batch(1, producer=7)
        + batch(2, producer=8)
        + marker(3, 7, is_commit=False)
        + batch(4, producer=7)
        + marker(5, 7, is_commit=True)
        + marker(6, 8, is_commit=True)
    )
    assert offsets(readable(data, (7, 1))) == [0, 2, 4]


def test_a_transaction_that_began_in_an_earlier_fetch_is_left_out() -> None:
    data = batch(10, producer=7) + marker(11, 7, is_commit=False) + batch(12, producer=7)
    assert offsets(readable(data, (7, 2))) == [12]


def test_two_aborted_transactions_of_one_producer_are_both_left_out() -> None:
    data = (
        batch(0, producer=7)
        + marker(1, 7, is_commit=False)
        + batch(2, producer=7)
        + marker(3, 7, is_commit=False)
        + batch(4)
    )
    assert offsets(readable(data, (7, 0), (7, 2))) == [4]
