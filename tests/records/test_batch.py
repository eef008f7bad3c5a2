"""The header of a batch: what is read, stamped, checked and refused."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records import batch as batch_module
from moldau.records.batch import (
    HEADER_BYTES,
    BatchFormatError,
    check_batches,
    crc_matches,
    place,
    read_header,
    stamp,
    stamp_append_time,
)
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records

BYTES_MAX = 1 << 20


def batch_of(count: int = 3, **options) -> bytes:
    records = [
        Record(Offset(i), TimestampMs(1_000 + i), b"key-%d" % i, b"value-%d" % i, [])
        for i in range(count)
    ]
    return build_batch(records, **options)


def with_field(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one field changed and a checksum that matches again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def refusal(data: bytes, bytes_max: int = BYTES_MAX) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        check_batches(memoryview(data), bytes_max=bytes_max)
    return caught.value.code


def test_header_agrees_with_another_implementation():
    batch = batch_of(
        4, base_offset=77, leader_epoch=5, producer_id=9, producer_epoch=2, base_sequence=11
    )
    header = read_header(b"xx" + batch, 2)
    theirs = KafkaPythonBatch(batch)
    assert header.base_offset == theirs.base_offset == 77
    assert header.size == theirs.size_in_bytes == len(batch)
    assert header.leader_epoch == theirs.leader_epoch == 5
    assert header.crc == theirs.crc
    assert header.attributes == theirs.attributes == 0
    assert header.last_offset == theirs.last_offset == 80
    assert header.next_offset == theirs.next_offset == 81
    assert header.base_timestamp == theirs.first_timestamp == 1_000
    assert header.max_timestamp == theirs.max_timestamp == 1_003
    assert header.producer_id == theirs.producer_id == 9
    assert header.producer_epoch == theirs.producer_epoch == 2
    assert header.base_sequence == theirs.base_sequence == 11
    assert header.last_sequence == theirs.last_sequence == 14
    assert header.record_count == theirs.records_count == 4
    assert header.producer_id >= 0


def test_flags_are_read_from_the_attributes():
    plain = read_header(batch_of())
    assert (plain.codec, plain.is_append_time, plain.is_transactional, plain.is_control) == (
        Codec.NONE,
        False,
        False,
        False,
    )
    assert plain.producer_id < 0
    assert read_header(batch_of(codec=Codec.LZ4)).codec == Codec.LZ4
    assert read_header(batch_of(append_time=5)).is_append_time
    assert read_header(batch_of(transactional=True)).is_transactional
    assert read_header(batch_of(control=True)).is_control


@pytest.mark.parametrize(
    ("base_sequence", "count", "last_sequence"),
    [(0, 1, 0), (2**31 - 1, 1, 2**31 - 1), (2**31 - 1, 2, 0), (2**31 - 2, 4, 1), (-1, 3, -1)],
)
def test_last_sequence_wraps_past_the_largest(base_sequence, count, last_sequence):
    assert read_header(batch_of(count, base_sequence=base_sequence)).last_sequence == last_sequence


def test_a_header_cut_at_any_byte_is_no_header():
    batch = batch_of()
    for size in range(HEADER_BYTES):
        with pytest.raises(BatchFormatError):
            read_header(batch[:size])
        with pytest.raises(BatchFormatError):
            read_header(memoryview(b"pad" + batch[:size]), 3)
    assert read_header(batch[:HEADER_BYTES]).size == len(batch)


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (16, ">b", 0),
        (16, ">b", 1),
        (16, ">b", 3),
        (8, ">i", 48),
        (8, ">i", -1),
        (8, ">i", 0),
        (23, ">i", -1),
        (57, ">i", -1),
    ],
)
def test_impossible_headers_are_refused(position, layout, value):
    with pytest.raises(BatchFormatError):
        read_header(with_field(batch_of(), position, layout, value))


def test_zeros_are_no_header():
    with pytest.raises(BatchFormatError):
        read_header(bytes(4096))


def test_every_single_bit_flip_after_the_epoch_fails_the_checksum():
    batch = batch_of(1)
    header = read_header(batch)
    assert crc_matches(b"....." + batch, 5, header.size, header.crc)
    for bit in range(21 * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not crc_matches(damaged, 0, header.size, header.crc)


def test_every_single_bit_flip_outside_offset_and_epoch_is_refused():
    batch = batch_of(1)
    for bit in range(len(batch) * 8):
        if bit // 8 in range(8) or bit // 8 in range(12, 16):
            continue
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        assert refusal(bytes(damaged)) in {
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        }


def test_stamp_sets_offset_and_epoch_and_nothing_else():
    batch = batch_of()
    stamped = bytearray(b"##" + batch + b"##")
    stamp(memoryview(stamped), 2, 2**40, 7)
    header = read_header(stamped, 2)
    assert header == read_header(batch).replaced(base_offset=Offset(2**40), leader_epoch=Epoch(7))
    assert crc_matches(stamped, 2, header.size, header.crc)
    assert stamped[:2] == stamped[-2:] == b"##"
    assert stamped[2 + 16 : -2] == batch[16:]


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_is_stamped_with_a_new_checksum(codec):
    batch = batch_of(codec=codec)
    stamped = bytearray(b"#" + batch + b"#")
    stamp_append_time(memoryview(stamped), 1, len(batch), 999_999)
    header = read_header(stamped, 1)
    assert header.is_append_time
    assert header.codec == codec
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 999_999)
    assert [record.timestamp for record in read_records(stamped[1:-1])] == [999_999] * 3
    assert stamped[:1] == stamped[-1:] == b"#"


def test_good_batches_are_described_in_order():
    first = batch_of(2)
    second = batch_of(3, codec=Codec.ZSTD, producer_id=4, producer_epoch=0, base_sequence=0)
    data = memoryview(b"frame" + first + second)[5:]
    headers = check_batches(data, bytes_max=BYTES_MAX)
    assert headers == [read_header(first), read_header(second)]
    assert isinstance(headers[0].size, int)
    assert headers[1].codec == Codec.ZSTD


@given(st.integers(1, 50), st.sampled_from(Codec), st.binary(max_size=200))
def test_whatever_is_built_is_accepted(count, codec, value):
    batch = build_batch([Record(Offset(0), TimestampMs(5), None, value, [])] * count, codec=codec)
    assert check_batches(memoryview(batch), bytes_max=len(batch)) == [read_header(batch)]


def test_data_cut_at_any_byte_is_corrupt():
    data = batch_of(1) + batch_of(2)
    ends = {len(batch_of(1)), len(data)}
    for size in range(1, len(data)):
        if size not in ends:
            assert refusal(data[:size]) == ErrorCode.CORRUPT_MESSAGE


def test_trailing_garbage_is_corrupt():
    for tail in (b"\x00", b"x" * 60, b"x" * 61, b"x" * 500):
        assert refusal(batch_of() + tail) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_hostile_lengths_are_corrupt(length):
    assert refusal(with_field(batch_of(), 8, ">i", length)) == ErrorCode.CORRUPT_MESSAGE


def test_no_batch_at_all_is_an_invalid_record():
    assert refusal(b"") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named_as_the_reason(magic):
    assert (
        refusal(with_field(batch_of(), 16, ">b", magic)) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    )
    # The smallest old message is shorter than a v2 header.
    message = struct.pack(">qiIbb", 0, 14, 0, magic, 0) + b"\xff" * 8
    assert refusal(message) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_unknown_magic_is_corrupt():
    assert refusal(with_field(batch_of(), 16, ">b", 3)) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_above_the_bound_is_too_large():
    batch = batch_of()
    assert check_batches(memoryview(batch), bytes_max=len(batch))
    assert refusal(batch, len(batch) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    # The bound is per batch, not per request.
    assert len(check_batches(memoryview(batch * 3), bytes_max=len(batch))) == 3


@pytest.mark.parametrize("second", [batch_of(), b"x" * 61, b"x"])
def test_where_one_is_allowed_nothing_is_checked_behind_the_first(second, monkeypatch):
    first = batch_of()
    checked = []

    def noting(data):
        checked.append(data)
        return crc32c(data)

    monkeypatch.setattr(batch_module, "_checksum", noting)
    data = memoryview(first + second * 1000)
    assert check_batches(data[: len(first)], bytes_max=BYTES_MAX, is_single=True)
    with pytest.raises(RefusedError) as refused:
        check_batches(data, bytes_max=BYTES_MAX, is_single=True)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert len(checked) == 2


@pytest.mark.parametrize(("count", "delta"), [(0, -1), (-1, -2), (3, 3), (3, 1), (2, 2), (4, 3)])
def test_counts_that_disagree_are_invalid_records(count, delta):
    batch = with_field(with_field(batch_of(1), 57, ">i", count), 23, ">i", delta)
    assert refusal(batch) == ErrorCode.INVALID_RECORD
    # The last pair is consistent, but four records cannot fit: each takes seven bytes at least.
    assert len(batch) < HEADER_BYTES + 4 * 7


def test_control_batches_from_clients_are_invalid_records():
    batch = batch_of(1, control=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_named_as_the_reason(codec):
    batch = with_field(batch_of(), 21, ">h", codec)
    assert refusal(batch) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_append_time_from_a_client_is_an_invalid_timestamp():
    assert refusal(batch_of(append_time=1)) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1), (-5, 3)])
def test_a_producer_without_epoch_or_sequence_is_an_invalid_record(epoch, sequence):
    batch = batch_of(producer_id=1, producer_epoch=epoch, base_sequence=sequence)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, -1), (0, 0), (-1, 0)])
def test_without_a_producer_id_epoch_and_sequence_mean_nothing(epoch, sequence):
    batch = batch_of(producer_id=-1, producer_epoch=epoch, base_sequence=sequence)
    assert check_batches(memoryview(batch), bytes_max=BYTES_MAX)[0].producer_id < 0


def test_transactional_batches_need_a_producer_id():
    good = batch_of(transactional=True, producer_id=0, producer_epoch=0, base_sequence=0)
    assert check_batches(memoryview(good), bytes_max=BYTES_MAX)[0].is_transactional
    assert refusal(batch_of(transactional=True)) == ErrorCode.INVALID_RECORD


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data):
    with pytest.raises(RefusedError):
        check_batches(memoryview(data), bytes_max=BYTES_MAX)


@given(st.data())
def test_garbage_behind_a_valid_checksum_is_refused_or_described(data):
    header = bytearray(data.draw(st.binary(min_size=HEADER_BYTES, max_size=120)))
    struct.pack_into(">iib", header, 8, len(header) - 12, 0, 2)
    struct.pack_into(">I", header, 17, crc32c(header[21:]))
    try:
        headers = check_batches(memoryview(header), bytes_max=BYTES_MAX)
    except RefusedError:
        return
    assert headers == [read_header(header)]
    assert headers[0].record_count == headers[0].last_offset_delta + 1 > 0
    assert headers[0].codec in list(Codec)
    assert not headers[0].is_control


def test_headers_are_compared_by_value_and_copied_with_changes() -> None:
    header = read_header(batch_of())
    same = header.replaced()
    other = header.replaced(producer_id=7)
    assert same == header
    assert same is not header
    assert hash(same) == hash(header)
    assert other != header
    assert (other.producer_id, header.producer_id) == (7, -1)
    assert "producer_id=7" in repr(other)
    with pytest.raises(TypeError, match="no_such"):
        header.replaced(no_such=1)


def test_a_batch_and_its_header_are_placed_together() -> None:
    batch = bytearray(b"before" + batch_of())
    header = read_header(batch, 6)
    before = header.replaced()
    place(batch, 6, header, Offset(2**40), Epoch(7))
    assert header == before.replaced(base_offset=2**40, leader_epoch=7) == read_header(batch, 6)
    assert crc_matches(batch, 6, header.size, header.crc)
    assert batch.startswith(b"before")
