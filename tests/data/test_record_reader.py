"""Pages of records: whole ones, in bounds, and never stuck."""

import pytest

from moldau.data import record_reader
from moldau.data import stored_batches as stored
from moldau.data.record_reader import PAGE_BYTES_MAX, _decode
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch


def batch(first: int, *values: bytes, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(Offset(0), TimestampMs(0), None, value, []) for value in values]
    return build_batch(records, base_offset=Offset(first), codec=codec)


def damaged(stored: bytes) -> bytes:
    return stored[:-1] + bytes([stored[-1] ^ 1])


def page(stored: bytes, offset: int = 0, limit: int = 1000, wants=None) -> tuple[list[int], int]:
    records, next_offset, _ = _decode(stored, (), offset, limit, wants)
    return [record.offset for record in records], next_offset


def test_a_page_ends_at_its_bound_of_bytes_and_the_next_goes_on_there():
    half = b"x" * (PAGE_BYTES_MAX // 2)
    stored = batch(0, half, half, half, codec=Codec.ZSTD) + batch(3, half, codec=Codec.ZSTD)
    assert page(stored) == ([0, 1], 2)
    assert page(stored, 2) == ([2, 3], 4)


def test_a_record_beyond_the_bound_makes_a_page_of_its_own():
    large = b"x" * (PAGE_BYTES_MAX + 1)
    stored = batch(0, b"a", large, b"b", codec=Codec.ZSTD)
    assert page(stored) == ([0], 1)
    assert page(stored, 1) == ([1], 2)
    assert page(stored, 2) == ([2], 3)


def test_what_a_filter_leaves_out_takes_no_room():
    large = b"x" * PAGE_BYTES_MAX
    stored = batch(0, large, large, b"a", large, b"b", codec=Codec.ZSTD)
    assert page(stored, wants=lambda record: len(record.value) == 1) == ([2, 4], 5)


def test_a_batch_that_cannot_be_read_says_where_to_go_on():
    stored = batch(0, b"a", b"b") + damaged(batch(2, b"c", b"d")) + batch(4, b"e")
    # What is good before it is shown first.
    assert page(stored) == ([0, 1], 2)
    bad = stored[len(batch(0, b"a", b"b")) :]
    with pytest.raises(RefusedError) as refused:
        page(bad, 2)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert refused.value.hint == "continue at offset 4"
    assert page(batch(4, b"e"), 4) == ([4], 5)


def test_a_batch_of_too_many_records_is_not_opened(monkeypatch):
    monkeypatch.setattr(stored, "BATCH_RECORDS_MAX", 2)
    assert page(batch(0, b"a", b"b")) == ([0, 1], 2)
    with pytest.raises(RefusedError) as refused:
        page(batch(0, b"a", b"b", b"c"))
    assert "3 records" in str(refused.value)


def test_a_page_ends_when_it_has_looked_at_enough_also_if_it_wants_nothing(monkeypatch):
    """A few stored kilobytes may hold gigabytes of what a filter leaves out."""
    stored = b"".join(batch(number, b"x" * 1000, codec=Codec.ZSTD) for number in range(10))

    def nothing(record: Record) -> bool:
        return False

    assert page(stored, wants=nothing) == ([], 10)
    monkeypatch.setattr(record_reader, "_DECODED_BYTES_MAX", 3000)
    assert page(stored, wants=nothing) == ([], 3)
    monkeypatch.setattr(record_reader, "_DECODED_RECORDS_MAX", 2)
    assert page(stored, wants=nothing) == ([], 2)


def test_all_that_was_decoded_counts_and_not_only_what_is_wanted():
    values = [b"x" * 1000, b"y" * 200]
    records = [Record(Offset(0), TimestampMs(0), b"key", value, [("h", b"12")]) for value in values]
    stored = build_batch(records, base_offset=Offset(0), codec=Codec.ZSTD)
    both = 1200 + 2 * len(b"keyh12")
    assert _decode(stored, (), 0, 1000, lambda record: False)[2] == both
    # The whole batch is decoded for one record of it.
    assert _decode(stored, (), 1, 1, None)[2] == both
    assert _decode(stored + batch(2, b"z"), (), 0, 1000, None)[2] == both + 1
    assert _decode(stored + batch(2, b"z"), (), 0, 1, None)[2] == both
