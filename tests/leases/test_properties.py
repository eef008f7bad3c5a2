"""Arbitrary commands, lost writes, restarts and changes of the leader: what must hold regardless.

The world keeps books of its own, of the messages in the log and what became of them, and compares.
A leader of the past goes on deciding beside the present one. The mutants below plant the mistakes
that are easiest to make, and each must be caught.
"""

import random
from typing import Any

import pytest
from effort import seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from queue_machine_world import QUEUE, World, run

from moldau.leases import decide as decide_module
from moldau.leases import draft as draft_module
from moldau.leases import records as records_module
from moldau.leases.commands import TakeOver
from moldau.leases.delay_buckets import DAY_MS, HOUR_MS, MINUTE_MS, bucket_keys
from moldau.leases.results import CommandRefused, Done, GrantedLeases, Refusal, SettleResult
from moldau.leases.state import Dead, Leased, QueueState, Waiting
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.errors import CorruptionError
from moldau.model.invariants import InvariantError


@pytest.fixture(autouse=True)
def _short_cycles(monkeypatch):
    """So that snapshots come often, and the keys of changes are used again."""
    monkeypatch.setattr(draft_module, "SNAPSHOT_EVERY", 7)
    monkeypatch.setattr(records_module, "SLOTS", 7)


@pytest.mark.parametrize("seed", seeds(16))
def test_whatever_happens_every_message_comes_to_one_end(seed):
    run(seed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_whatever_is_drawn_every_message_comes_to_one_end(rng, steps):
    run(rng, steps)


def test_the_worlds_see_all_that_can_be_seen():
    """A simulation in which nothing happens proves nothing."""
    seen: set[Any] = set()
    for seed in range(20):
        world = World(random.Random(seed))
        do = world.do

        def heard(*commands, do=do):
            answers = do(*commands)
            for answer in answers:
                if isinstance(answer, SettleResult):
                    seen.update(answer.refusals)
                elif isinstance(answer, GrantedLeases):
                    seen.add("full" if answer.is_full else "room")
                elif answer.is_more:
                    seen.add("more")
            return answers

        world.do = heard  # type: ignore[method-assign]
        for _ in range(150):
            world.step()
            seen.update(type(entry) for entry in world.machine.state.open.values())
            seen.update(span for span, _ in world.machine.state.buckets)
        if world.buried:
            seen.add("buried")
    assert seen == {
        Refusal.NONE,
        Refusal.OTHER_QUEUE,
        Refusal.OTHER_EPOCH,
        Refusal.NEVER_DELIVERED,
        Refusal.SETTLED,
        Refusal.DEAD,
        Refusal.EXPIRED,
        Refusal.NOT_HOLDER,
        "full",
        "room",
        "more",
        "buried",
        Leased,
        Waiting,
        Dead,
        DAY_MS,
        HOUR_MS,
        MINUTE_MS,
    }


# ---- planted mistakes


def _judges_without(*ignored):
    judge = decide_module._check_token

    def careless(draft, checksum, token, member, now):
        verdict = judge(draft, checksum, token, member, now)
        entry = draft.get(token.offset)
        if verdict in ignored and isinstance(entry, Leased):
            return entry
        return verdict

    return careless


def _takes_over_without_the_leases(monkeypatch):
    take_over = decide_module._take_over

    def voids(state, config, queue, command):
        decision = take_over(state, config, queue, command)
        if decision.record is None:
            return decision
        opened = tuple(
            (offset, Waiting(entry.attempts, 0) if isinstance(entry, Leased) else entry)
            for offset, entry in decision.record.opened
        )
        return replace(decision, record=replace(decision.record, opened=opened))

    monkeypatch.setattr(decide_module, "_take_over", voids)


def _never_dies(monkeypatch):
    monkeypatch.setattr(
        decide_module, "_redeliver", lambda config, lease, now, last: Waiting(lease.attempts, now)
    )
    monkeypatch.setattr(
        decide_module, "_nacked", lambda config, lease, command: Waiting(lease.attempts, 0)
    )


def _forgets_attempts(monkeypatch):
    monkeypatch.setattr(
        decide_module, "_redeliver", lambda config, lease, now, last: Waiting(0, now)
    )


def _delivers_early(monkeypatch):
    monkeypatch.setattr(QueueState, "due", lambda state, now: state.waiting_by_time())


def _skips_what_was_not_read(monkeypatch):
    def fresh(state, read):
        for message in read.messages:
            if message.offset >= state.next:
                yield message

    monkeypatch.setattr(decide_module, "_fresh", fresh)


def _delivers_again_what_was_read_twice(monkeypatch):
    def fresh(state, read):
        yield from read.messages

    monkeypatch.setattr(decide_module, "_fresh", fresh)


def _any_member_settles(monkeypatch):
    monkeypatch.setattr(decide_module, "_check_token", _judges_without(Refusal.NOT_HOLDER))


def _late_acks_count(monkeypatch):
    monkeypatch.setattr(decide_module, "_check_token", _judges_without(Refusal.EXPIRED))


def _tokens_of_any_epoch_count(monkeypatch):
    monkeypatch.setattr(decide_module, "_check_token", _judges_without(Refusal.OTHER_EPOCH))


def _buries_the_living(monkeypatch):
    def bury(draft, command):
        for offset in command.offsets:
            if draft.get(offset) is not None:
                draft.settle(offset)
        return Done(count=len(command.offsets))

    monkeypatch.setattr(decide_module, "_settle_dead", bury)


def _snapshots_come_too_late(monkeypatch):
    monkeypatch.setattr(draft_module, "SNAPSHOT_EVERY", 20)


def _any_record_follows(monkeypatch):
    monkeypatch.setattr(QueueState, "follows", lambda self, record: True)


def _opens_beside_a_bucket(monkeypatch):
    belongs_in_bucket = decide_module._belongs_in_bucket

    def careless(draft, deliver_at, now, open_count):
        return deliver_at > now and belongs_in_bucket(draft, deliver_at, now, open_count)

    monkeypatch.setattr(decide_module, "_belongs_in_bucket", careless)


def _puts_into_the_shortest_bucket(monkeypatch):
    monkeypatch.setattr(draft_module, "bucket_keys", lambda time: bucket_keys(time)[::-1])


def _loses_what_is_recalled(monkeypatch):
    monkeypatch.setattr(QueueState, "_is_recalled", lambda self, offset, record: False)


@pytest.mark.parametrize(
    "mistake",
    [
        _opens_beside_a_bucket,
        _puts_into_the_shortest_bucket,
        _loses_what_is_recalled,
        _takes_over_without_the_leases,
        _never_dies,
        _forgets_attempts,
        _delivers_early,
        _skips_what_was_not_read,
        _delivers_again_what_was_read_twice,
        _any_member_settles,
        _late_acks_count,
        _tokens_of_any_epoch_count,
        _buries_the_living,
        _snapshots_come_too_late,
        _any_record_follows,
    ],
    ids=lambda mistake: mistake.__name__.strip("_"),
)
def test_a_planted_mistake_is_caught(mistake, monkeypatch):
    mistake(monkeypatch)
    for seed in range(40):
        try:
            run(seed)
        except (AssertionError, InvariantError, CorruptionError, KeyError):
            return
    pytest.fail("nothing was noticed")


def test_a_machine_of_the_past_may_not_take_over_again():
    world = World(random.Random(1))
    world.begin(new_epoch=True)
    late = QueueStateMachine(QUEUE, world.config, world.epoch - 1)
    late.load(world.ledger.stored(QUEUE))
    command = TakeOver(epoch=world.epoch - 1, now=0, start=0, end=0)
    assert late.decide(command).result == CommandRefused(Refusal.FENCED)
