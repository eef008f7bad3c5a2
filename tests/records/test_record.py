"""Records inside a batch: both directions against other clients, damage, hostile numbers."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from moldau.records.batch import (
    HEADER_BYTES,
    BatchFormatError,
    build_raw_batch,
    check_batches,
    crc_matches,
    read_header,
)
from moldau.records.compact import scan_records
from moldau.records.compression import Codec, compress
from moldau.records.record import (
    Record,
    build_batch,
    has_null_key,
    open_body,
    read_records,
    recompress,
)

SAMPLE = [
    Record(0, 1_700_000_000_000, b"k", b"v", []),
    Record(1, 1_700_000_000_005, None, b"", [("h", b"x"), ("h", None), ("", b"")]),
    Record(2, 1_699_999_999_000, b"", None, [("größe", b"\x00" * 200)]),
    Record(3, 1_700_000_100_000, b"key" * 100, b"value" * 1000, []),
]

records_strategy = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(-1, 2**48),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=400),
        headers=st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9))),
    ),
    min_size=1,
    max_size=20,
)


def renumbered(records, base_offset=0):
    return [record._replace(offset=base_offset + i) for i, record in enumerate(records)]


def batch_around(body: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch with a valid header and checksum around arbitrary bytes."""
    payload = compress(codec, body)
    batch = bytearray(
        struct.pack(
            ">qiibIhiqqqhii", 0, 49 + len(payload), 0, 2, 0, codec, max(count - 1, 0), 0, 0, -1,
            -1, -1, count,
        )
    )  # fmt: skip
    batch += payload
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


@given(records_strategy, st.sampled_from(Codec), st.integers(0, 2**60), st.integers(-1, 2**31 - 1))
def test_round_trip(records, codec, base_offset, epoch):
    batch = build_batch(records, codec=codec, base_offset=base_offset, leader_epoch=epoch)
    assert read_records(batch) == renumbered(records, base_offset)
    assert read_header(batch).leader_epoch == epoch
    assert has_null_key(batch) == any(record.key is None for record in records)


@pytest.mark.parametrize("position", [0, 63, 64, 8191, 8192, 9999])
def test_the_one_record_without_a_key_is_found(position):
    records = [Record(0, 0, b"k", None, [])] * 10_000
    assert not has_null_key(build_batch(records))
    records[position] = Record(0, 0, None, b"k", [])
    assert has_null_key(build_batch(records))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
def test_batches_of_other_clients_are_read(codec, builder):
    theirs = builder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for record in SAMPLE:
        theirs.append(
            record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
    batch = bytes(theirs.build())
    assert check_batches(memoryview(batch), bytes_max=1 << 20)[0].codec == codec
    assert read_records(batch) == SAMPLE


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
def test_other_clients_read_our_batches(codec, reader):
    batch = reader(build_batch(SAMPLE, codec=codec, base_offset=40))
    assert batch.validate_crc()
    theirs = [
        Record(record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in batch
    ]
    assert theirs == renumbered(SAMPLE, 40)


def test_our_bytes_are_those_of_another_client():
    theirs = AiokafkaBuilder(
        magic=2, compression_type=0, is_transactional=1, producer_id=7, producer_epoch=2,
        base_sequence=30, batch_size=1 << 20,
    )  # fmt: skip
    for record in SAMPLE:
        theirs.append(
            record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
    ours = build_batch(
        SAMPLE, transactional=True, producer_id=7, producer_epoch=2, base_sequence=30
    )
    # The leader epoch is the broker's to fill in; clients leave what they like there.
    assert ours[:12] + ours[16:] == bytes(theirs.build()[:12] + theirs.build()[16:])


def test_producer_fields_and_flags_reach_the_header():
    header = read_header(
        build_batch(
            SAMPLE[:2],
            producer_id=2**40,
            producer_epoch=300,
            base_sequence=2**31 - 1,
            transactional=True,
            control=True,
        )
    )
    assert (header.producer_id, header.producer_epoch) == (2**40, 300)
    assert header.base_sequence == 2**31 - 1
    assert header.is_transactional
    assert header.is_control


def test_append_time_counts_for_every_record():
    batch = build_batch(SAMPLE, append_time=123)
    assert read_header(batch).max_timestamp == 123
    assert [record.timestamp for record in read_records(batch)] == [123] * len(SAMPLE)


def test_the_latest_timestamp_is_in_the_header_wherever_it_stands():
    records = [Record(0, time, None, None, []) for time in (5, 9, 3)]
    header = read_header(build_batch(records))
    assert (header.base_timestamp, header.max_timestamp) == (5, 9)


@pytest.mark.parametrize("size", [0, 63, 64, 511, 512, 8191, 8192])
@pytest.mark.parametrize("later_ms", [-1, 0, 63, 64, 511, 512])
def test_short_and_long_records_are_read_as_they_were_written(size, later_ms):
    first = Record(0, 1_000, b"k", b"v", [])
    second = Record(1, 1_000 + later_ms, b"k" * size, b"v" * size, [])
    assert list(read_records(build_batch([first, second]))) == [first, second]
    many = [Record(offset, 1_000, b"k", b"v", []) for offset in range(600)]
    assert list(read_records(build_batch(many))) == many


def test_a_batch_of_nothing_cannot_be_built():
    with pytest.raises(ValueError):
        build_batch([])


def test_header_keys_that_are_no_utf8_survive():
    body = bytes([0, 0, 0, 1, 1, 2, 4]) + b"\xff\xfe" + bytes([1])
    batch = batch_around(bytes([len(body) * 2]) + body, 1)
    records = read_records(batch)
    rebuilt = build_batch(records)
    assert rebuilt[HEADER_BYTES:] == batch[HEADER_BYTES:]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_cut_at_any_byte_is_refused(codec):
    batch = build_batch(SAMPLE[:3], codec=codec)
    for size in range(len(batch)):
        with pytest.raises(BatchFormatError):
            read_records(batch[:size])
    with pytest.raises(BatchFormatError):
        read_records(batch + b"\x00")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_cut_at_any_byte_behind_a_valid_checksum_are_refused(codec):
    body = build_batch(SAMPLE[:3])[HEADER_BYTES:]
    for size in range(len(body)):
        with pytest.raises(BatchFormatError):
            read_records(batch_around(body[:size], 3, codec))
    assert len(read_records(batch_around(body, 3, codec))) == 3


def test_every_single_bit_flip_is_refused_or_outside_the_checksum():
    batch = build_batch(SAMPLE[:2])
    good = read_records(batch)
    for bit in range(len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit // 8 in range(8) or bit // 8 in range(12, 16):
            assert [record[1:] for record in read_records(damaged)] == [r[1:] for r in good]
        else:
            with pytest.raises(BatchFormatError):
                read_records(damaged)


EMPTY_RECORD = bytes([12, 0, 0, 0, 1, 1, 0])
SECOND_RECORD = bytes([12, 0, 0, 2, 1, 1, 0])


@pytest.mark.parametrize(
    ("why", "body", "count"),
    [
        ("too few records", EMPTY_RECORD, 2),
        ("too many records", EMPTY_RECORD + SECOND_RECORD, 1),
        ("no bytes for the record", b"", 1),
        ("record of negative length", bytes([1]) + EMPTY_RECORD[1:], 1),
        ("record longer than the batch", bytes([14]) + EMPTY_RECORD[1:], 1),
        ("record shorter than its fields", bytes([10]) + EMPTY_RECORD[1:], 1),
        ("key length -2", bytes([12, 0, 0, 0, 3, 1, 0]), 1),
        ("value length -2", bytes([12, 0, 0, 0, 1, 3, 0]), 1),
        ("key past its record", bytes([12, 0, 0, 0, 100, 1, 0]) + bytes(100), 1),
        ("value past its record", bytes([12, 0, 0, 0, 1, 2, 0]), 1),
        ("bytes left in the record", bytes([14, 0, 0, 0, 1, 1, 0, 0]), 1),
        ("record that spans the next", bytes([26]) + EMPTY_RECORD[1:] + SECOND_RECORD, 2),
        ("negative header count", bytes([12, 0, 0, 0, 1, 1, 1]), 1),
        ("hostile header count", bytes([20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F]), 1),
        ("header without a key", bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), 1),
        ("offsets that stand still", EMPTY_RECORD + EMPTY_RECORD, 2),
        ("negative offset", bytes([12, 0, 0, 1, 1, 1, 0]), 1),
        ("offset past the batch", bytes([12, 0, 0, 2, 1, 1, 0]), 1),
        ("endless number", b"\xff" * 40, 1),
        ("number of 70 bits", bytes([30]) + bytes([0]) + b"\xff" * 9 + b"\x7f\x00\x01\x01\x00", 1),
    ],
)
def test_nonsense_behind_a_valid_checksum_is_refused(why, body, count):
    with pytest.raises(BatchFormatError):
        read_records(batch_around(body, count))


def test_the_largest_time_difference_is_read():
    records = [Record(0, 0, None, None, []), Record(1, 2**62, None, None, [])]
    assert read_records(build_batch(records)) == records


def test_gaps_that_compaction_leaves_are_read():
    batch = bytearray(batch_around(EMPTY_RECORD + bytes([12, 0, 0, 10, 1, 1, 0]), 2))
    struct.pack_into(">i", batch, 23, 9)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    assert [record.offset for record in read_records(batch)] == [0, 5]
    assert read_header(batch).next_offset == 10


def test_unknown_codecs_are_refused():
    batch = bytearray(build_batch(SAMPLE))
    batch[22] |= 5
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    with pytest.raises(BatchFormatError):
        read_records(batch)


@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from(Codec))
def test_garbage_behind_a_valid_checksum_never_raises_anything_else(body, count, codec):
    batch = batch_around(body, count, codec)
    for function in (read_records, has_null_key):
        try:
            function(batch)
        except BatchFormatError:
            continue


def test_decompressed_records_are_bounded():
    batch = build_batch([Record(0, 0, None, b"\x00" * 100_000, [])], codec=Codec.ZSTD)
    assert len(batch) < 500
    for function in (read_records, has_null_key):
        function(batch, bytes_max=101_000)
        with pytest.raises(BatchFormatError):
            function(batch, bytes_max=100_000)
    with pytest.raises(BatchFormatError):
        recompress(batch, Codec.LZ4, bytes_max=100_000)


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_recompression_keeps_all_else(source, target):
    batch = build_batch(
        SAMPLE,
        codec=source,
        base_offset=9,
        leader_epoch=3,
        producer_id=1,
        producer_epoch=1,
        base_sequence=4,
        append_time=55,
        transactional=True,
    )
    result = recompress(batch, target)
    header = read_header(result)
    assert header.codec == target
    assert header.size == len(result)
    assert crc_matches(result, 0, header.size, header.crc)
    before = read_header(batch)
    assert header == before.replaced(
        size=header.size, crc=header.crc, attributes=before.attributes & ~7 | target
    )
    assert read_records(result) == read_records(batch)


def test_recompression_does_not_launder_damage():
    batch = bytearray(build_batch(SAMPLE))
    batch[-1] ^= 1
    with pytest.raises(BatchFormatError):
        recompress(batch, Codec.GZIP)


@pytest.mark.parametrize(
    ("base", "delta"), [((1 << 63) - 1, 1), (-(1 << 63), -1), (1 << 62, 1 << 62)]
)
def test_a_timestamp_that_no_batch_could_store_again_is_refused(base, delta):
    records = [Record(0, 0, b"k", b"v", []), Record(1, delta, b"k", b"v", [])]
    made = build_batch(records)
    header = read_header(made).replaced(base_timestamp=base)
    batch = build_raw_batch(header, made[HEADER_BYTES:])
    with pytest.raises(BatchFormatError):
        read_records(batch)
    with pytest.raises(BatchFormatError):
        scan_records(open_body(batch, header), header)
