"""Idempotent producers: retries are recognised, gaps and old epochs refused, state survives."""

import random

import pytest

from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.producer_snapshot import decode_producers, encode_producers
from moldau.replica.producers import REMEMBERED_BATCHES, ProducerTable

NOW = TimestampMs(1_000_000)


def batch(
    sequence: int, count: int = 1, *, offset: int = 0, producer: int = 7, epoch: int = 0
) -> BatchHeader:
    return BatchHeader(
        Offset(offset),
        100,
        Epoch(0),
        0,
        0,
        count - 1,
        NOW,
        NOW,
        ProducerId(producer),
        ProducerEpoch(epoch),
        sequence,
        count,
    )


def table_with(*batches: BatchHeader) -> ProducerTable:
    table = ProducerTable()
    for header in batches:
        assert table.check(header) is None
        table.appended(header, NOW)
    return table


def no_marker(header: BatchHeader) -> EndMarker | None:
    raise AssertionError(f"{header} is no marker")


def refusal(table: ProducerTable, header: BatchHeader) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        table.check(header)
    return caught.value.code


def test_a_retry_of_any_of_the_last_five_batches_gets_the_original_offset() -> None:
    table = table_with(*(batch(i * 3, 3, offset=i * 10) for i in range(8)))
    for i in range(8 - REMEMBERED_BATCHES, 8):
        original = table.check(batch(i * 3, 3))
        assert original is not None
        assert (original.base_offset, original.last_offset) == (i * 10, i * 10 + 2)


def test_a_retry_of_an_older_batch_is_out_of_order() -> None:
    table = table_with(*(batch(i, offset=i) for i in range(8)))
    assert refusal(table, batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused() -> None:
    assert refusal(table_with(batch(0, 5)), batch(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_a_remembered_one_is_no_retry_of_it() -> None:
    table = table_with(batch(0, 5))
    assert refusal(table, batch(0, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    last = 2**31 - 1
    table = table_with(batch(last - 1, 2, offset=5))
    assert table.check(batch(0)) is None
    table.appended(batch(0, offset=7), NOW)
    crossing = table_with(batch(last, 3, offset=1))
    assert crossing.check(batch(2)) is None


def test_an_old_epoch_is_fenced() -> None:
    table = table_with(batch(0, epoch=3))
    assert refusal(table, batch(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_sequence_zero() -> None:
    table = table_with(batch(0, 9, epoch=3))
    assert refusal(table, batch(9, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert table.check(batch(0, epoch=4)) is None
    table.appended(batch(0, epoch=4), NOW)
    assert refusal(table, batch(9, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerTable().check(batch(1234)) is None


def test_silent_producers_are_forgotten_and_others_kept() -> None:
    table = table_with(batch(0, producer=1))
    table.appended(batch(0, producer=2), TimestampMs(NOW + 500))
    assert table.expire(TimestampMs(NOW + 1)) == 1
    assert table.get(ProducerId(1)) is None
    assert table.get(ProducerId(2)) is not None


def test_a_snapshot_and_the_headers_after_it_give_the_same_table() -> None:
    rng = random.Random(5)
    headers, sequences = [], dict.fromkeys(range(4), 0)
    for offset in range(60):
        producer = rng.randrange(4)
        count = rng.randrange(1, 4)
        headers.append(batch(sequences[producer], count, offset=offset * 5, producer=producer))
        sequences[producer] += count
    whole = ProducerTable()
    whole.replay(headers, NOW, no_marker)
    half = ProducerTable()
    half.replay(headers[:31], NOW, no_marker)
    restored = decode_producers(encode_producers(half))
    restored.replay(headers[31:], NOW, no_marker)
    assert encode_producers(restored) == encode_producers(whole)


def sequences(table: ProducerTable, producer: int = 7) -> list[int] | None:
    state = table.get(ProducerId(producer))
    return None if state is None else [one.base_sequence for one in state.batches]


def test_a_cut_forgets_batches_that_reach_its_offset_and_lets_their_retries_be_stored() -> None:
    table = table_with(*(batch(i * 2, 2, offset=i * 10) for i in range(4)))
    assert table.cut(Offset(21))
    assert sequences(table) == [0, 2]
    assert table.check(batch(4, 2)) is None
    assert refusal(table, batch(6, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    original = table.check(batch(2, 2))
    assert original is not None
    assert original.base_offset == 10


def test_a_cut_above_all_that_is_known_changes_nothing() -> None:
    table = table_with(*(batch(i, offset=i) for i in range(3)))
    before = encode_producers(table)
    assert table.cut(Offset(3))
    assert encode_producers(table) == before


@pytest.mark.parametrize("other", [(), (batch(0, offset=0, producer=8),)])
def test_a_cut_that_leaves_nothing_of_a_producer_is_not_enough(
    other: tuple[BatchHeader, ...],
) -> None:
    assert not table_with(*other, batch(5, offset=10)).cut(Offset(10))


def test_a_cut_that_takes_a_new_epoch_back_is_not_enough() -> None:
    # The table no longer knows what the epoch before had; the log does.
    assert not table_with(batch(0, offset=0), batch(0, offset=1, epoch=1)).cut(Offset(1))


def test_a_table_for_an_earlier_offset_knows_what_lies_below_it_and_stays_as_it_is() -> None:
    table = table_with(*(batch(i, offset=i) for i in range(4)), batch(0, offset=9, producer=8))
    before = encode_producers(table)
    below = table.below(Offset(2))
    assert (sequences(below), sequences(below, 8)) == ([0, 1], None)
    assert below.check(batch(2)) is None
    below.appended(batch(2, offset=2), NOW)
    assert encode_producers(table) == before
    assert encode_producers(table.below(Offset(10))) == before


@pytest.mark.parametrize("time", [0, 1 << 60])
def test_the_time_in_a_batch_does_not_decide_when_its_producer_is_forgotten(time: int) -> None:
    table = ProducerTable()
    table.replay([batch(0)._replace(max_timestamp=TimestampMs(time))], NOW, no_marker)
    assert table.expire(NOW) == 0
    assert table.expire(TimestampMs(NOW + 1)) == 1


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"\x92\x03\x90", b"\x92\x02\x90", b"\x92\x01\x91\x91\x01"]
)
def test_a_damaged_snapshot_is_told_apart(payload: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_producers(payload)
