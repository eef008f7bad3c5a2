"""What a partition of `__queue_state` stores, and whose records it takes."""

from typing import cast

import pytest

from moldau.leases.config import QueueConfig
from moldau.leases.ledger import Ledger
from moldau.leases.records import decode, encode, tombstones
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId, QueueRecord, Waiting
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.errors import CorruptionError

QUEUE = QueueId("g", b"t" * 16, 2)
OTHER = QueueId("h", b"t" * 16, 2)


def snapshot(sequence, epoch=1, queue=QUEUE, **fields):
    fields = {"next": sequence, **fields}
    return QueueRecord(queue=queue, sequence=sequence, epoch=epoch, is_snapshot=True, **fields)


def change(sequence, epoch=1, queue=QUEUE, **fields):
    return QueueRecord(queue=queue, sequence=sequence, epoch=epoch, **{"next": sequence, **fields})


def loaded(*records):
    ledger = Ledger()
    for record in records:
        ledger.replay(*encode(record))
    ledger.finish_loading()
    return ledger


def test_a_queue_is_loaded_from_its_snapshot_and_the_changes_after_it():
    ledger = loaded(
        change(6, opened=((5, Waiting(0, 1)),)),
        change(3),
        change(5, settled=(2,)),
        snapshot(4, opened=((2, Waiting(1, 1)), (3, Waiting(1, 1)))),
        snapshot(1, queue=OTHER),
    )
    sequences = [cast(QueueRecord, decode(*record)).sequence for record in ledger.stored(QUEUE)]
    assert sequences == [4, 5, 6]
    machine = QueueStateMachine(QUEUE, QueueConfig(), 1)
    machine.load(ledger.stored(QUEUE))
    assert dict(machine.state.open) == {3: Waiting(1, 1), 5: Waiting(0, 1)}
    assert set(ledger.queues()) == {QUEUE, OTHER}


def test_a_missing_change_is_corruption_for_an_ack_may_have_been_in_it():
    with pytest.raises(CorruptionError, match="record 6"):
        loaded(snapshot(4), change(6))


def test_changes_without_a_snapshot_are_what_is_left_of_a_forgotten_queue():
    assert loaded(change(4), change(5)).stored(QUEUE) == ()


def test_a_tombstone_in_the_log_forgets():
    ledger = Ledger()
    for record in (snapshot(1), change(2)):
        ledger.replay(*encode(record))
    for key, value in tombstones(QUEUE):
        ledger.replay(key, value)
    ledger.finish_loading()
    assert ledger.stored(QUEUE) == ()
    assert ledger.check(encode(snapshot(1))) is Refusal.NONE


def test_a_queue_that_is_forgotten_begins_again():
    ledger = loaded(snapshot(4))
    ledger.forget(QUEUE)
    assert ledger.check(encode(change(5))) is Refusal.OUT_OF_STEP
    assert ledger.check(encode(snapshot(1))) is Refusal.NONE


def test_records_of_an_unknown_kind_are_skipped():
    ledger = Ledger()
    ledger.replay(b"\0\x63whatever", b"else")
    ledger.finish_loading()
    assert not list(ledger.queues())


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (change(5, epoch=3), Refusal.NONE),
        (snapshot(5, epoch=3), Refusal.NONE),
        (snapshot(5, epoch=4), Refusal.NONE),
        (change(5, epoch=2), Refusal.FENCED),
        (snapshot(9, epoch=2), Refusal.FENCED),
        (change(5, epoch=4), Refusal.OUT_OF_STEP),
        (change(4, epoch=3), Refusal.OUT_OF_STEP),
        (change(6, epoch=3), Refusal.OUT_OF_STEP),
        (snapshot(6, epoch=3), Refusal.OUT_OF_STEP),
        (snapshot(6, epoch=4), Refusal.OUT_OF_STEP),
    ],
)
def test_only_the_next_record_of_the_leader_is_taken(record, verdict):
    ledger = loaded(snapshot(4, epoch=3))
    assert ledger.check(encode(record)) is verdict
    assert ledger.apply(*encode(record)) is (verdict is Refusal.NONE)
    last = decode(*ledger.stored(QUEUE)[-1])
    assert isinstance(last, QueueRecord)
    assert last.sequence == (5 if verdict is Refusal.NONE else 4)


def test_a_queue_begins_with_its_first_snapshot():
    ledger = Ledger()
    assert ledger.check(encode(change(1))) is Refusal.OUT_OF_STEP
    assert ledger.check(encode(snapshot(2))) is Refusal.OUT_OF_STEP
    assert ledger.apply(*encode(snapshot(1)))
    assert ledger.stored(QUEUE) == (encode(snapshot(1)),)


def test_records_of_one_batch_must_be_a_row():
    ledger = loaded(snapshot(4, epoch=3))
    row = [change(5, epoch=3), snapshot(6, epoch=3), change(7, epoch=3)]
    assert ledger.check(*map(encode, row)) is Refusal.NONE
    for wrong in (
        [row[0], row[2]],
        [row[1], row[2]],
        [row[0], snapshot(6, epoch=4)],
        [row[0], change(6, epoch=3, queue=OTHER)],
    ):
        assert ledger.check(*map(encode, wrong)) is Refusal.OUT_OF_STEP


def test_bytes_that_are_no_record_are_not_stored():
    for key, value in ((b"\0\x63whatever", b"else"), (b"", b""), (encode(change(1))[0], b"\0")):
        with pytest.raises(CorruptionError):
            Ledger().check((key, value))
    assert Ledger().check() is Refusal.OUT_OF_STEP
