"""Idempotent producers: retries are recognised, gaps and old epochs refused, state survives."""

import random
from array import array
from typing import Any

import msgspec
import pytest

from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
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


def test_inactive_producers_are_forgotten_and_others_kept() -> None:
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
    assert table.truncate(Offset(21))
    assert sequences(table) == [0, 2]
    assert table.check(batch(4, 2)) is None
    assert refusal(table, batch(6, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    original = table.check(batch(2, 2))
    assert original is not None
    assert original.base_offset == 10


def test_a_cut_above_all_that_is_known_changes_nothing() -> None:
    table = table_with(*(batch(i, offset=i) for i in range(3)))
    before = encode_producers(table)
    assert table.truncate(Offset(3))
    assert encode_producers(table) == before


@pytest.mark.parametrize("other", [(), (batch(0, offset=0, producer=8),)])
def test_a_cut_that_leaves_nothing_of_a_producer_is_not_enough(
    other: tuple[BatchHeader, ...],
) -> None:
    assert not table_with(*other, batch(5, offset=10)).truncate(Offset(10))


def test_a_cut_that_takes_a_new_epoch_back_is_not_enough() -> None:
    # The table no longer knows what the epoch before had; the log does.
    assert not table_with(batch(0, offset=0), batch(0, offset=1, epoch=1)).truncate(Offset(1))


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
    table.replay([batch(0).replaced(max_timestamp=TimestampMs(time))], NOW, no_marker)
    assert table.expire(NOW) == 0
    assert table.expire(TimestampMs(NOW + 1)) == 1


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"\x92\x03\x90", b"\x92\x02\x90", b"\x92\x01\x91\x91\x01"]
)
def test_a_damaged_snapshot_is_detected(payload: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_producers(payload)


# ---- transactions


def transactional(
    sequence: int, count: int = 1, *, offset: int = 0, producer: int = 7, epoch: int = 0
) -> BatchHeader:
    header = batch(sequence, count, offset=offset, producer=producer, epoch=epoch)
    return header.replaced(attributes=TRANSACTIONAL_BIT)


def end_of(offset: int, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    header = batch(-1, 1, offset=offset, producer=producer, epoch=epoch)
    return header.replaced(attributes=TRANSACTIONAL_BIT | CONTROL_BIT)


def end(
    table: ProducerTable,
    offset: int,
    *,
    commits: bool = True,
    producer: int = 7,
    epoch: int = 0,
    coordinator: int = 1,
) -> None:
    header = end_of(offset, producer=producer, epoch=epoch)
    table.appended(header, NOW, EndMarker(commits, coordinator))


def aborted(table: ProducerTable) -> list[tuple[int, ...]]:
    return [tuple(each) for each in table.aborted.all()]


def test_a_transaction_is_unstable_until_its_marker_is_committed() -> None:
    table = table_with(batch(0, offset=0, producer=8), transactional(0, 3, offset=5))
    assert table.first_unstable == 5
    end(table, 9)
    assert (table.first_unstable, table.is_open(ProducerId(7), ProducerEpoch(0))) == (5, False)
    table.settle(Offset(9))
    assert table.first_unstable == 5
    table.settle(Offset(10))
    assert table.first_unstable is None


def test_the_oldest_open_transaction_says_what_is_stable_whichever_ends_first() -> None:
    table = table_with(
        transactional(0, offset=0, producer=1),
        transactional(0, offset=1, producer=2),
        transactional(0, offset=2, producer=3),
    )
    end(table, 3, producer=2, commits=False)
    end(table, 4, producer=1, commits=False)
    assert table.first_unstable == 0
    # Each with the first offset that was open once its marker was there.
    assert aborted(table) == [(2, 1, 3, 0), (1, 0, 4, 2)]
    table.settle(Offset(4))
    assert table.first_unstable == 0
    table.settle(Offset(5))
    assert table.first_unstable == 2
    end(table, 5, producer=3, commits=False)
    assert aborted(table)[2] == (3, 2, 5, 6)


@pytest.mark.parametrize(
    ("start", "stop", "found"), [(0, 9, "abc"), (0, 1, "b"), (4, 9, "bc"), (5, 6, "c"), (9, 20, "")]
)
def test_the_aborted_transactions_of_a_range_are_all_that_reach_into_it(
    start: int, stop: int, found: str
) -> None:
    table = table_with(
        transactional(0, offset=0, producer=ord("b")),
        transactional(0, offset=1, producer=ord("a")),
    )
    end(table, 3, producer=ord("a"), commits=False)
    end(table, 4, producer=ord("b"), commits=False)
    table.appended(transactional(0, offset=5, producer=ord("c")), NOW)
    end(table, 8, producer=ord("c"), commits=False)
    spans = table.aborted.between(Offset(start), Offset(stop))
    assert sorted(chr(span.producer_id) for span in spans) == list(found)


def test_a_range_is_found_without_looking_at_all_that_was_aborted_since() -> None:
    table = ProducerTable()
    for number in range(100):
        table.appended(transactional(number, offset=number * 2), NOW)
        end(table, number * 2 + 1, commits=False)
    looked_at = 0

    class Counted(array):  # type: ignore[type-arg]
        def __getitem__(self, place: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(place)

    table.aborted._firsts = Counted("q", table.aborted._firsts)
    assert len(table.aborted.between(Offset(100), Offset(103))) == 2
    assert 0 < looked_at <= 6


def test_a_marker_of_an_earlier_epoch_is_refused() -> None:
    table = table_with(transactional(0, epoch=3))
    for version in (0, 2):
        with pytest.raises(RefusedError) as caught:
            table.check_marker(ProducerId(7), ProducerEpoch(2), 9, version)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_of_an_earlier_coordinator_is_refused_other_than_an_old_producer() -> None:
    table = table_with(transactional(0))
    end(table, 1, coordinator=5)
    table.appended(transactional(1, offset=2), NOW)
    with pytest.raises(RefusedError) as caught:
        table.check_marker(ProducerId(7), ProducerEpoch(0), 4, 0)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert table.check_marker(ProducerId(7), ProducerEpoch(0), 5, 0)


def test_a_marker_that_is_there_is_not_wanted_again_but_from_a_new_coordinator() -> None:
    table = table_with(transactional(0))
    end(table, 1, coordinator=5)
    assert not table.check_marker(ProducerId(7), ProducerEpoch(0), 5, 0)
    # Whoever was its coordinator before must not end what comes next.
    assert table.check_marker(ProducerId(7), ProducerEpoch(0), 6, 0)
    assert table.check_marker(ProducerId(7), ProducerEpoch(1), 5, 0)
    assert table.check_marker(ProducerId(99), ProducerEpoch(0), 5, 0)


def test_a_late_marker_of_the_transaction_before_does_not_end_the_one_that_is_open() -> None:
    table = table_with(transactional(0))
    assert table.check_marker(ProducerId(7), ProducerEpoch(1), 5, 2)
    end(table, 1, epoch=1, coordinator=5)
    assert not table.check_marker(ProducerId(7), ProducerEpoch(1), 5, 2)
    table.appended(transactional(0, offset=2, epoch=1), NOW)
    with pytest.raises(RefusedError) as caught:
        table.check_marker(ProducerId(7), ProducerEpoch(1), 5, 2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    # An older client's transactions have one epoch, and that exposure.
    assert table.check_marker(ProducerId(7), ProducerEpoch(1), 5, 0)


@pytest.mark.safety
@pytest.mark.parametrize(("epoch", "sequence"), [(3, 1), (3, 5), (4, 0), (32767, 0), (32767, 9)])
def test_a_plain_batch_does_not_get_into_an_open_transaction(epoch: int, sequence: int) -> None:
    """Whatever its epoch: a later one would fence the marker, and nothing behind is stable."""
    table = table_with(transactional(0, epoch=3))
    assert refusal(table, batch(sequence, epoch=epoch)) is ErrorCode.INVALID_TXN_STATE
    assert refusal(table, batch(0, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    # The coordinator may raise the epoch, and then the producer may write as it likes.
    assert table.check_marker(ProducerId(7), ProducerEpoch(3), 1, 0)
    assert table.check_marker(ProducerId(7), ProducerEpoch(4), 1, 2)
    end(table, 1, epoch=4)
    table.settle(Offset(2))
    assert table.first_unstable is None
    assert table.check(batch(0, epoch=4)) is None


def test_a_retry_of_a_plain_batch_is_recognised_beside_an_open_transaction() -> None:
    table = table_with(batch(0, offset=0), transactional(1, offset=1))
    original = table.check(batch(0))
    assert original is not None
    assert original.base_offset == 0


@pytest.mark.safety
def test_a_transactional_batch_is_no_retry_of_a_plain_one() -> None:
    """Somebody else wrote that: its producer must not be told that its own batch is stored."""
    table = table_with(transactional(0, offset=0))
    end(table, 1)
    for header in (batch(1, offset=2), batch(2, offset=3)):
        assert table.check(header) is None
        table.appended(header, NOW)
    for known in (table, decode_producers(encode_producers(table))):
        assert known.is_new(transactional(1))
        assert refusal(known, transactional(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # In the transaction before, and outside of any.
        assert known.check(transactional(0)) is not None
        assert known.check(batch(1)) is not None
        known.appended(transactional(3, offset=4), NOW)
        assert refusal(known, transactional(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert known.check(transactional(3)) is not None
        assert not known.is_new(transactional(3))


def test_an_epoch_that_a_marker_began_starts_at_sequence_zero() -> None:
    table = table_with(transactional(0))
    end(table, 1, epoch=1)
    assert refusal(table, transactional(1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(table, transactional(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert table.check(transactional(0, epoch=1)) is None


def test_sequences_go_on_over_the_end_of_a_transaction_in_the_same_epoch() -> None:
    table = table_with(transactional(0, 2))
    end(table, 2)
    assert table.check(transactional(2, offset=3)) is None
    assert refusal(table, transactional(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    original = table.check(transactional(0, 2))
    assert original is not None


def test_what_a_coordinator_writes_within_a_transaction_is_not_numbered() -> None:
    table = table_with(transactional(-1, offset=0), transactional(-1, offset=1))
    assert table.first_unstable == 0
    assert table.check(transactional(-1, offset=2)) is None
    assert table.truncate(Offset(1))
    assert not table.truncate(Offset(0))


def test_a_plain_batch_amid_a_transaction_is_refused() -> None:
    table = table_with(transactional(0))
    assert refusal(table, batch(1)) is ErrorCode.INVALID_TXN_STATE
    end(table, 1)
    assert table.check(batch(1)) is None


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    table = table_with(transactional(0, producer=1), batch(0, offset=1, producer=2))
    later = TimestampMs(NOW + 1)
    assert table.expire(later) == 1
    assert table.first_unstable == 0
    end(table, 2, producer=1)
    assert table.expire(later) == 1


def test_a_cut_takes_transactions_back_that_it_leaves_nothing_of() -> None:
    table = table_with(
        batch(0, offset=0),
        transactional(0, offset=1, producer=8),
        transactional(1, offset=2, producer=8),
        transactional(1, offset=3),
    )
    assert table.truncate(Offset(2))
    assert (table.first_unstable, table.is_open(ProducerId(7), ProducerEpoch(0))) == (1, False)
    assert table.check(batch(1)) is None


def test_a_cut_of_a_marker_is_not_enough() -> None:
    table = table_with(transactional(0), batch(0, offset=5, producer=9))
    end(table, 6)
    assert not table.truncate(Offset(6))
    assert table.truncate(Offset(7))


def test_a_marker_that_compaction_emptied_keeps_the_epoch_and_ends_nothing() -> None:
    table = table_with(transactional(0).replaced(record_count=0))
    assert table.first_unstable is None
    table.appended(transactional(1, offset=1), NOW)
    table.appended(end_of(2, epoch=4).replaced(record_count=0), NOW, None)
    state = table.get(ProducerId(7))
    assert state is not None
    assert (state.epoch, state.first) == (4, 1)


def test_a_table_is_the_same_from_snapshot_and_log_with_transactions() -> None:
    table = table_with(
        transactional(0, offset=0, producer=1),
        transactional(0, offset=1, producer=2),
        transactional(0, offset=2, producer=3),
    )
    end(table, 3, producer=2, commits=False, coordinator=9)
    end(table, 4, producer=3)
    read = decode_producers(encode_producers(table))
    assert encode_producers(read) == encode_producers(table)
    assert (read.first_unstable, read.last_marker) == (0, 4)
    assert aborted(read) == [(2, 1, 3, 0)]
    for one in (table, read):
        end(one, 5, producer=1, commits=False)
        one.settle(Offset(6))
        assert (one.first_unstable, aborted(one)[1]) == (None, (1, 0, 5, 6))


def test_a_snapshot_without_transactions_is_still_read() -> None:
    rows = [(7, 2, NOW, [(0, 4, 10, 14, NOW)])]
    table = decode_producers(msgspec.msgpack.encode((1, rows)))
    assert (sequences(table), table.first_unstable, len(table.aborted)) == ([0], None, 0)
    original = table.check(batch(0, 5, epoch=2))
    assert original is not None
    assert original.base_offset == 10


@pytest.mark.parametrize(
    "columns",
    [[], [b"", b"", b""], [bytes(8), bytes(8), bytes(8), b""], [bytes(7)] * 4],
)
def test_a_damaged_list_of_aborted_transactions_is_detected(columns: list[bytes]) -> None:
    with pytest.raises(CorruptionError):
        decode_producers(msgspec.msgpack.encode((2, ([], [], -1, columns))))


def test_aborted_transactions_below_the_start_of_the_log_are_forgotten() -> None:
    table = ProducerTable()
    for number in range(4):
        table.appended(transactional(number, offset=number * 10), NOW)
        end(table, number * 10 + 5, commits=False)
    table.aborted.forget_below(Offset(15))
    assert [span[1] for span in aborted(table)] == [10, 20, 30]
    table.aborted.forget_below(Offset(16))
    assert [span[1] for span in aborted(table)] == [20, 30]


def test_a_log_that_begins_later_knows_the_transactions_that_were_open_there() -> None:
    table = table_with(
        transactional(0, offset=0, producer=1),
        transactional(0, offset=1, producer=2),
        transactional(0, offset=6, producer=3),
    )
    end(table, 3, producer=2, commits=False, coordinator=4)
    below = table.below(Offset(5))
    assert (below.first_unstable, len(below.aborted)) == (0, 0)
    second = below.get(ProducerId(2))
    assert second is not None
    assert second.coordinator_epoch == 4
    assert below.get(ProducerId(3)) is None


def test_a_new_epoch_of_a_producer_does_not_let_its_old_coordinators_in_again() -> None:
    table = table_with(transactional(0))
    end(table, 1, coordinator=5)
    table.appended(transactional(0, offset=2, epoch=1), NOW)
    with pytest.raises(RefusedError) as caught:
        table.check_marker(ProducerId(7), ProducerEpoch(1), 4, 0)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_an_epoch_that_began_above_is_not_known_below() -> None:
    table = table_with(transactional(0, offset=2), transactional(1, offset=3))
    end(table, 6, epoch=1)
    end(table, 1, epoch=0, producer=8)
    # The follower begins there, and hears of the rest.
    below = table.below(Offset(2))
    assert [producer for producer, _ in below] == [8]
    below.appended(transactional(0, offset=2), NOW)
    below.appended(transactional(1, offset=3), NOW)
    end(below, 6, epoch=1)
    # It is the first of its epoch, though one of the epoch before had the same number.
    assert below.check(transactional(0, epoch=1)) is None
