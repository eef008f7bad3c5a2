"""One batch under compaction: records found, kept byte for byte, or stood in for."""

import random

import pytest
from effort import seeds

from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchFormatError, BatchHeader, crc_matches, read_header
from moldau.records.compact import (
    emptied_batch,
    empty_batch,
    is_filler,
    keep_records,
    scan_records,
    split_empty,
)
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, open_body, read_records


def some_records(rng: random.Random, count: int, base: int) -> list[Record]:
    records = []
    for place in range(count):
        key = rng.choice((None, b"", b"k", rng.randbytes(rng.choice((20, 200)))))
        value = rng.choice((None, b"", b"v", rng.randbytes(rng.choice((100, 20_000)))))
        headers = [("name", rng.choice((None, b"x")))] * rng.choice((0, 0, 2))
        time = 1000 + rng.choice((0, 5, -500, 1 << 40))
        records.append(Record(Offset(base + place), TimestampMs(time), key, value, headers))
    return records


def check_whole(batch: bytes) -> BatchHeader:
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_matches(batch, 0, header.size, header.crc)
    return header


@pytest.mark.parametrize("seed", range(20))
def test_any_choice_of_records_is_kept_as_it_was(seed: int) -> None:
    rng = random.Random(seed)
    base = rng.choice((0, 7, 1 << 40))
    records = some_records(rng, rng.choice((1, 2, 30, 300)), base)
    codec = rng.choice(list(Codec))
    batch = build_batch(
        records,
        codec=codec,
        base_offset=Offset(base),
        leader_epoch=Epoch(3),
        producer_id=ProducerId(9),
        producer_epoch=ProducerEpoch(1),
        base_sequence=44,
    )
    header = read_header(batch)
    body = open_body(batch, header)
    spans = scan_records(body, header)
    assert spans.keys == [record.key for record in records]
    assert [base + delta for delta in spans.deltas] == [record.offset for record in records]
    assert spans.tombstones == [
        place for place, record in enumerate(records) if record.value is None
    ]
    kept = sorted(rng.sample(range(len(records)), rng.randint(1, len(records))))
    rewritten = keep_records(header, body, spans, kept)
    found = check_whole(rewritten)
    assert read_records(rewritten) == [records[place] for place in kept]
    assert found.max_timestamp == max(records[place].timestamp for place in kept)
    same = ("base_offset", "leader_epoch", "attributes", "last_offset_delta", "producer_id")
    for name in (*same, "producer_epoch", "base_sequence", "base_timestamp"):
        assert getattr(found, name) == getattr(header, name)
    # And once more: gaps between offsets are nothing new then.
    body = open_body(rewritten, found)
    again = keep_records(found, body, scan_records(body, found), [len(kept) - 1])
    assert read_records(again) == [records[kept[-1]]]


def test_append_time_counts_for_all_records_that_stay() -> None:
    records = [Record(Offset(place), TimestampMs(place), b"k", b"v", []) for place in range(3)]
    batch = build_batch(records, append_time=TimestampMs(777))
    header = read_header(batch)
    body = open_body(batch, header)
    kept = keep_records(header, body, scan_records(body, header), [1])
    assert [record.timestamp for record in read_records(kept)] == [777]


@pytest.mark.parametrize("seed", seeds(60))
def test_records_that_do_not_add_up_are_refused_as_the_reader_refuses_them(seed: int) -> None:
    rng = random.Random(seed)
    records = some_records(rng, 5, 0)
    batch = build_batch(records)
    header = read_header(batch)
    body = bytearray(open_body(batch, header))
    for _ in range(rng.choice((1, 3))):
        body[rng.randrange(min(len(body), 60))] = rng.randrange(256)
    if rng.random() < 0.3:
        del body[rng.randrange(len(body)) :]
    if rng.random() < 0.3:
        header = header.replaced(record_count=rng.choice((0, 4, 6, 1 << 30)))
    try:
        spans = scan_records(bytes(body), header)
    except BatchFormatError:
        return
    # What is accepted can be cut up without harm.
    assert len(spans.ends) == len(spans.keys) == header.record_count
    assert spans.ends == sorted(spans.ends)
    if spans.ends:
        assert spans.ends[-1] == len(body)


def test_an_empty_batch_stands_for_offsets_and_can_be_split_anywhere() -> None:
    batch = empty_batch(Offset(10), Offset(15), Epoch(2), TimestampMs(9))
    header = check_whole(batch)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (10, 15, 2)
    assert (header.max_timestamp, header.record_count) == (9, 0)
    assert is_filler(header)
    assert read_records(batch) == []
    for offset in range(11, 15):
        left, right = map(check_whole, split_empty(header, Offset(offset)))
        assert (left.base_offset, left.next_offset) == (10, offset)
        assert (right.base_offset, right.next_offset) == (offset, 15)
        assert left.leader_epoch == right.leader_epoch == 2
    for offset in (9, 10, 15, 16):
        with pytest.raises(BatchFormatError):
            split_empty(header, Offset(offset))


def test_an_emptied_batch_still_names_its_producer_and_is_not_split() -> None:
    records = [Record(Offset(place), TimestampMs(5), b"k", bytes(99), []) for place in range(3)]
    batch = build_batch(
        records,
        codec=Codec.LZ4,
        base_offset=Offset(30),
        leader_epoch=Epoch(2),
        producer_id=ProducerId(9),
        producer_epoch=ProducerEpoch(1),
        base_sequence=44,
        transactional=True,
    )
    header = read_header(batch)
    emptied = emptied_batch(header)
    found = check_whole(emptied)
    assert read_records(emptied) == []
    assert (found.codec, found.record_count, found.is_transactional) == (0, 0, True)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (9, 1, 44)
    assert (found.last_sequence, found.last_offset) == (header.last_sequence, header.last_offset)
    assert not is_filler(found)
    with pytest.raises(BatchFormatError):
        split_empty(found, Offset(31))
