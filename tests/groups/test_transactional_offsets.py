"""Offsets that are committed within transactions: pending, then counted or dropped."""

import random
from typing import Any

import pytest
from effort import seeds

from moldau.coordination.latest_records import LatestRecords
from moldau.groups import transactional_offsets
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.events import (
    CommitTransactionOffsets,
    OffsetToCommit,
    ResetOffsets,
    TransactionEnded,
    TransactionEnding,
)
from moldau.model.coordinator_events import Persist, Persisted
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records

NONE = ErrorCode.NONE
P, Q = ProducerId(7), ProducerId(8)


class Transactions:
    """What producers do with a world's groups; remembers the log with its producers."""

    def __init__(self, world) -> None:
        self.world = world
        self.batches: list[bytes] = []
        honest = world.coordinator.handle

        def handle(now, event):
            effects = honest(now, event)
            for effect in effects:
                if isinstance(effect, Persist):
                    self.append(effect.records, effect.producer)
            return effects

        world.coordinator.handle = handle

    def append(self, records, producer, **fields) -> None:
        self.batches.append(
            build_batch(
                [Record(Offset(0), TimestampMs(1), key, value, []) for key, value in records],
                base_offset=Offset(100 * len(self.batches)),
                producer_id=producer[0],
                producer_epoch=producer[1],
                transactional=producer[0] >= 0,
                **fields,
            )
        )

    def send(self, offsets, producer=P, *, group="g", guard=None, epoch=0, **fields) -> Any:
        return self.world.send(
            CommitTransactionOffsets,
            group_id=group,
            producer_id=producer,
            producer_epoch=epoch,
            guard=self.world.coordinator.transaction_guard() if guard is None else guard,
            offsets=tuple(
                OffsetToCommit(partition=partition, offset=Offset(offset))
                for partition, offset in offsets.items()
            ),
            **fields,
        )

    def commit(self, offsets, producer=P, **fields):
        result = self.world.reply(self.send(offsets, producer, **fields))
        if result is None:
            return None
        (error,) = {error for _, error in result.errors}
        return error

    def end(self, producer=P, *, commit=True) -> None:
        self.world.handle(TransactionEnding(producer_id=producer, next_epoch_min=1))
        key = b"\0\0\0\1" if commit else b"\0\0\0\0"
        self.append([(key, b"\0\0\0\0\0\0")], (producer, 0), control=True)
        self.world.handle(TransactionEnded(producer_id=producer, is_commit=commit))

    def unstable(self, group="g"):
        return self.world.coordinator.fetch_offsets(group).unstable

    def reloaded(self) -> GroupCoordinator:
        latest = LatestRecords()
        for batch in self.batches:
            for record in read_records(batch):
                latest.add(read_header(batch), record)
        heir = GroupCoordinator(self.world.config, str, self.world.wall_ms, self.world.topics)
        for item in latest.items():
            heir.replay(*item)
        for pending in latest.pending():
            assert pending.key is not None
            heir.replay_pending(pending.producer_id, pending.key, pending.value)
        heir.finish_loading(self.world.now)
        heir.check_invariants()
        return heir


@pytest.fixture
def transactions(world) -> Transactions:
    return Transactions(world)


def test_an_offset_counts_when_its_transaction_is_committed(world, transactions):
    a = world.tp("t")
    assert world.commit({a: 1}) is NONE
    assert transactions.commit({a: 5}) is NONE
    assert world.committed() == {a: 1}
    assert transactions.unstable() == {a}
    transactions.end(Q)
    assert world.committed() == {a: 1}
    transactions.end(P)
    assert world.committed() == {a: 5}
    assert transactions.unstable() == frozenset()


def test_an_offset_of_an_aborted_transaction_never_counts(world, transactions):
    a = world.tp("t")
    assert transactions.commit({a: 5}) is NONE
    transactions.end(commit=False)
    assert world.committed() == {}
    assert world.coordinator.list_groups()[1] == []


def test_an_old_offset_stays_while_a_transaction_replaces_it(make_world):
    world = make_world(offsets_retention_ms=100_000, offsets_retention_check_ms=1000)
    transactions = Transactions(world)
    a, b = world.tp("t"), world.tp("u")
    world.commit({a: 1, b: 1})
    world.advance(99)
    assert transactions.commit({a: 5}) is NONE
    world.advance(10)
    assert world.committed() == {a: 1}
    transactions.end()
    assert world.committed() == {a: 5}
    assert transactions.reloaded().fetch_offsets("g").offsets[a].offset == 5


def test_its_records_belong_to_the_transaction_and_are_written_alone(world, transactions):
    world.hold_writes = True
    world.send_commit({world.tp("t"): 1})
    transactions.send({world.tp("t"): 5})
    transactions.send({world.tp("u"): 5})
    world.send_commit({world.tp("t"): 2})
    written = []
    while world.held:
        written.append(world.held[0].producer)
        world.complete()
    assert written == [(-1, -1), (P, 0), (P, 0), (-1, -1)]


def test_a_later_commit_wins_over_one_that_was_pending(world, transactions):
    a = world.tp("t")
    transactions.commit({a: 5})
    world.commit({a: 9})
    assert transactions.unstable() == frozenset()
    transactions.end()
    assert world.committed() == {a: 9}


def test_a_reset_wins_over_an_offset_that_is_pending(world, transactions):
    a = world.tp("t")
    transactions.commit({a: 5})
    offset = OffsetToCommit(partition=a, offset=Offset(2))
    reply = world.reply(world.send(ResetOffsets, group_id="g", offsets=(offset,)))
    assert reply.error is NONE
    transactions.end()
    assert world.committed() == {a: 2}
    assert transactions.reloaded().fetch_offsets("g").offsets[a].offset == 2


def test_of_two_transactions_the_later_commit_wins(world, transactions):
    a, b = world.tp("t"), world.tp("t", 1)
    transactions.commit({a: 5, b: 5}, P)
    transactions.commit({a: 6}, Q)
    transactions.end(Q)
    transactions.end(P)
    assert world.committed() == {a: 6, b: 5}


def test_a_commit_that_would_come_after_the_end_is_refused(world, transactions):
    a = world.tp("t")
    guard = world.coordinator.transaction_guard()
    transactions.end(P)
    assert transactions.commit({a: 5}, guard=guard) is ErrorCode.INVALID_TXN_STATE
    assert transactions.commit({a: 5}, Q, guard=guard) is NONE
    assert transactions.commit({a: 6}) is NONE


def test_the_end_of_a_transaction_says_nothing_of_the_next_one(world, transactions):
    """It was asked about before the end came, in the epoch to which the end raised the producer."""
    a = world.tp("t")
    guard = world.coordinator.transaction_guard()
    transactions.end(P)
    assert transactions.commit({a: 5}, guard=guard) is ErrorCode.INVALID_TXN_STATE
    assert transactions.commit({a: 6}, guard=guard, epoch=1) is NONE


def test_a_commit_that_waits_for_another_is_refused_when_its_transaction_ends(world, transactions):
    a = world.tp("t")
    world.hold_writes = True
    world.send_commit({a: 1})
    request = transactions.send({a: 5})
    world.handle(TransactionEnding(producer_id=P, next_epoch_min=1))
    world.release()
    assert [error for _, error in world.reply(request).errors] == [ErrorCode.INVALID_TXN_STATE]


def test_ends_that_were_forgotten_refuse_rather_than_accept(world, transactions, monkeypatch):
    monkeypatch.setattr(transactional_offsets, "ENDS_REMEMBERED_MAX", 2)
    a = world.tp("t")
    guard = world.coordinator.transaction_guard()
    for producer in (1, 2, 3):
        transactions.end(producer)
    assert transactions.commit({a: 5}, 1, guard=guard) is ErrorCode.INVALID_TXN_STATE
    assert transactions.commit({a: 5}, 9) is NONE


def test_a_producer_that_names_a_member_must_be_of_the_generation(world, transactions):
    a = world.tp("t")
    (member,) = world.stable(1)
    generation = 1
    assert transactions.commit({a: 1}, member_id=member, generation=generation) is NONE
    assert transactions.commit({a: 1}, member_id=member, generation=9) is (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert transactions.commit({a: 1}, member_id="x", generation=generation) is (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert transactions.commit({a: 1}) is NONE
    assert transactions.commit({a: 1}, group="u", generation=1) is ErrorCode.ILLEGAL_GENERATION


def test_a_deleted_group_takes_its_pending_offsets_along(world, transactions):
    a = world.tp("t")
    transactions.commit({a: 5})
    assert world.delete_groups("g") == {"g": NONE}
    transactions.end()
    assert world.committed() == {}
    assert transactions.reloaded().fetch_offsets("g").offsets == {}


def test_a_deleted_topic_takes_pending_offsets_along(world, transactions):
    transactions.commit({world.tp("t"): 5, world.tp("u"): 6})
    assert world.coordinator.offset_topics() == {"t", "u"}
    world.delete_topics("t")
    transactions.end()
    assert world.committed() == {world.tp("u"): 6}


def test_a_failed_write_leaves_nothing_pending(world, transactions):
    world.hold_writes = True
    request = transactions.send({world.tp("t"): 5})
    world.fail()
    assert [error for _, error in world.reply(request).errors] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    ]
    transactions.end()
    assert world.committed() == {}


def test_a_second_report_of_a_write_changes_nothing(world, transactions):
    a = world.tp("t")
    transactions.commit({a: 5})
    transactions.end()
    world.commit({a: 6})
    world.handle(Persisted(token=1))
    assert world.committed() == {a: 6}


@pytest.mark.parametrize("seed", seeds(25))
def test_every_load_of_the_log_gives_the_same_offsets(world, transactions, seed):
    rng = random.Random(seed)
    places = [world.tp("t", index) for index in range(3)]
    groups = ["g", "h"]
    for number in range(60):
        group, producer = rng.choice(groups), rng.choice([P, Q])
        offsets = dict.fromkeys(rng.sample(places, rng.randrange(1, 3)), number)
        match rng.randrange(6):
            case 0:
                world.commit(offsets, group=group)
            case 1 | 2:
                transactions.commit(offsets, producer, group=group)
            case 3:
                transactions.end(producer, commit=rng.random() < 0.5)
            case 4:
                world.delete_offsets(*offsets, group=group)
            case 5 if rng.random() < 0.3:
                world.delete_groups(group)
        if number % 10 == 0:
            heir = transactions.reloaded()
            for one in groups:
                assert heir.fetch_offsets(one) == world.coordinator.fetch_offsets(one)
    transactions.end(P)
    transactions.end(Q, commit=False)
    heir = transactions.reloaded()
    for one in groups:
        assert heir.fetch_offsets(one) == world.coordinator.fetch_offsets(one)
        assert not heir.fetch_offsets(one).unstable


def test_an_offset_that_a_transaction_would_bring_can_be_deleted(world, transactions):
    a = world.tp("t")
    assert transactions.commit({a: 5}) is NONE
    result = world.delete_offsets(a)
    assert [error for _, error in result.errors] == [NONE]
    transactions.end(P)
    assert world.coordinator.fetch_offsets("g").offsets == {}
