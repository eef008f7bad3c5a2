"""Whatever follows a batch that was refused for a while waits for it, and nothing else does."""

import pytest
from replica_brokers import make_batch

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader, read_header
from moldau.replica.producers import ProducerState, ProducerTable
from moldau.replica.sequence_gaps import SequenceGaps

PASSING = ErrorCode.NOT_LEADER_OR_FOLLOWER
LAST = 2**31 - 1


def batch(sequence: int, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    return read_header(make_batch(b"v", producer=producer, sequence=sequence, epoch=epoch))


def stored(sequence: int, *, epoch: int = 0) -> ProducerState | None:
    """What the log knows of the producer after that batch."""
    table = ProducerTable()
    header = batch(sequence, epoch=epoch).replaced(base_offset=Offset(sequence))
    table.appended(header, TimestampMs(0))
    return table.get(header.producer_id)


def is_refused(
    refusals: SequenceGaps,
    header: BatchHeader,
    state: ProducerState | None = None,
    now: float = 1.0,
) -> bool:
    try:
        refusals.check(header, state, now)
    except RefusedError as error:
        return error.code is PASSING
    return False


@pytest.fixture
def refusals() -> SequenceGaps:
    made = SequenceGaps()
    made.note(batch(10), PASSING, 0.0)
    return made


def test_what_follows_is_refused_until_the_batch_is_back(refusals: SequenceGaps) -> None:
    for sequence in (11, 12):
        assert is_refused(refusals, batch(sequence), stored(9))
        refusals.note(batch(sequence), PASSING, 1.0)
    assert not is_refused(refusals, batch(10), stored(9))
    assert not is_refused(refusals, batch(11), stored(10))


def test_also_of_a_producer_that_the_log_does_not_know_yet(refusals: SequenceGaps) -> None:
    assert is_refused(refusals, batch(11), None)


@pytest.mark.parametrize(
    "header",
    [batch(11, producer=8), batch(0, epoch=1), batch(10), batch(9)],
    ids=["of another producer", "of another epoch", "the batch itself", "an earlier one"],
)
def test_nothing_else_is_refused(refusals: SequenceGaps, header: BatchHeader) -> None:
    assert not is_refused(refusals, header, stored(9))


def test_a_batch_that_came_by_another_broker_is_not_waited_for(refusals: SequenceGaps) -> None:
    assert not is_refused(refusals, batch(13), stored(12))
    # Nor is it remembered any longer.
    assert not refusals.waiting


def test_an_earlier_epoch_in_the_log_does_not_tell_that_it_came(refusals: SequenceGaps) -> None:
    refusals.note(batch(0, epoch=1), PASSING, 0.0)
    assert is_refused(refusals, batch(1, epoch=1), stored(9, epoch=0))


@pytest.mark.parametrize("now", [1.0, 1000.0], ids=["soon", "late"])
def test_a_fenced_producer_gets_no_gap_error(refusals: SequenceGaps, now: float) -> None:
    refusals.check(batch(11), stored(0, epoch=1), now)


def is_told(
    refusals: SequenceGaps, header: BatchHeader, state: ProducerState | None, now: float
) -> bool:
    try:
        refusals.check(header, state, now)
    except RefusedError as error:
        return error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    return False


def test_the_gap_is_reported_soon_after_nothing_stood_in_the_way_of_the_batch(
    refusals: SequenceGaps,
) -> None:
    assert is_refused(refusals, batch(11), stored(9), now=40.0)
    assert is_refused(refusals, batch(11), stored(9), now=49.9)
    assert is_told(refusals, batch(11), stored(9), now=50.1)


def test_a_batch_that_is_refused_again_is_waited_for_again(refusals: SequenceGaps) -> None:
    assert is_refused(refusals, batch(11), stored(9), now=1.0)
    refusals.note(batch(10), PASSING, 5.0)
    assert is_refused(refusals, batch(11), stored(9), now=30.0)
    assert is_told(refusals, batch(11), stored(9), now=40.1)


def test_what_is_not_sent_again_is_not_waited_for_longer_than_clients_wait(
    refusals: SequenceGaps,
) -> None:
    assert is_refused(refusals, batch(11), stored(9), now=59.9)
    assert is_told(refusals, batch(11), stored(9), now=70.0)
    assert is_told(refusals, batch(11), stored(9), now=71.0)


def test_a_transaction_gets_the_gap_before_it_times_out() -> None:
    refusals = SequenceGaps()
    first, second = (
        header.replaced(attributes=TRANSACTIONAL_BIT) for header in (batch(10), batch(11))
    )
    refusals.note(first, PASSING, 0.0)
    assert is_refused(refusals, second, stored(9), now=9.9)
    assert is_told(refusals, second, stored(9), now=10.1)


def test_of_a_producer_that_was_forgotten_anything_is_taken_after_a_while(
    refusals: SequenceGaps,
) -> None:
    assert not is_refused(refusals, batch(11), None, now=60.1)
    assert not refusals.waiting


@pytest.mark.parametrize(
    ("header", "expected"), [(batch(12), 10), (batch(3, epoch=1), 0)], ids=["a gap", "a new epoch"]
)
@pytest.mark.parametrize(("leader_since", "until"), [(100.0, 160.0), (0.0, 110.0)])
def test_a_batch_that_comes_too_early_waits_for_what_may_be_at_the_leader_before(
    header: BatchHeader, expected: int, leader_since: float, until: float
) -> None:
    refusals = SequenceGaps()
    state = stored(9)
    assert state is not None
    with pytest.raises(RefusedError) as told:
        refusals.on_gap(header, state, 100.0, leader_since)
    assert told.value.code is PASSING
    refusals.note(header, PASSING, 100.0)
    for now in (100.0, 105.0, until - 0.1):
        assert is_refused(refusals, header, state, now)
    assert is_told(refusals, header, state, until + 0.1)
    missing = batch(expected, epoch=header.producer_epoch)
    assert not is_refused(refusals, missing, state, until + 1)
    assert not refusals.waiting


def test_a_batch_that_comes_too_late_is_no_gap() -> None:
    refusals, state = SequenceGaps(), stored(9)
    assert state is not None
    refusals.on_gap(batch(4), state, 0.0, 0.0)
    assert not refusals.waiting


def test_sequences_wrap_around() -> None:
    refusals = SequenceGaps()
    refusals.note(batch(LAST), PASSING, 0.0)
    assert is_refused(refusals, batch(0), stored(LAST - 1))
    assert not is_refused(refusals, batch(1), stored(0))


def test_what_is_remembered_is_bounded() -> None:
    refusals = SequenceGaps()
    for producer in range(5000):
        refusals.note(batch(3, producer=producer), PASSING, 0.0)
    assert len(refusals.waiting) == 1000
    assert is_refused(refusals, batch(4, producer=4999))
