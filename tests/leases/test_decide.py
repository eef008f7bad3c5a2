"""What a queue answers, rule by rule."""

from typing import Any

import pytest
from lease_queue import CONFIG, QUEUE, Queue
from msgspec.structs import replace
from queue_invariants import settled_ranges, snapshot

from moldau.leases import decide as decide_module
from moldau.leases import draft
from moldau.leases.commands import (
    Ack,
    Evict,
    ExpireDue,
    Extend,
    LogMessage,
    LogSlice,
    Nack,
    Poll,
    Recall,
    SettleDead,
    TakeOver,
    Trim,
)
from moldau.leases.config import QueueConfig
from moldau.leases.decide import has_room_for
from moldau.leases.delay_buckets import DAY_MS, HOUR_MS, MINUTE_MS, DelayBucket
from moldau.leases.records import encode
from moldau.leases.results import CommandRefused, Done, Refusal, SettleResult
from moldau.leases.state import Dead, Leased, Waiting
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.errors import ConfigError, CorruptionError


def offsets(tokens):
    return [token.offset for token in tokens]


# ---- delivery


def test_messages_are_leased_in_the_order_of_the_log():
    queue = Queue()
    assert offsets(queue.poll(2)) == [0, 1]
    assert offsets(queue.poll(2, member="bob")) == [2, 3]
    assert queue.state.open[2] == Leased(1, "bob", 1_000, 1)


def test_acks_in_any_order_move_the_floor_when_the_first_is_there():
    queue = Queue()
    a, b, c, d = queue.poll(4)
    assert queue.settle(Ack, d, b) == [Refusal.NONE] * 2
    assert queue.state.floor == 0
    assert list(settled_ranges(queue.state)) == [(1, 2), (3, 4)]
    assert queue.settle(Ack, a) == [Refusal.NONE]
    assert queue.state.floor == 2
    queue.settle(Ack, c)
    assert queue.state.floor == queue.state.next == 4


def test_offsets_that_hold_no_message_are_passed():
    queue = Queue()
    read = LogSlice(first=0, end=8, messages=(LogMessage(2), LogMessage(5)))
    assert offsets(queue.poll(4, gives=read)) == [2, 5]
    assert (queue.state.floor, queue.state.next) == (2, 8)


def test_what_is_unreadable_is_a_dead_letter_that_was_never_delivered():
    queue = Queue()
    read = LogSlice(
        first=0, end=9, messages=(LogMessage(0), LogMessage(1, fault="too much"), LogMessage(8))
    )
    assert offsets(queue.poll(2, gives=read)) == [0, 8]
    assert queue.state.dead == ((1, Dead(0, "too much")),)
    assert (queue.died, queue.state.next) == ((1,), 9)
    queue.next_leader()
    assert queue.state.dead == ((1, Dead(0, "too much")),)


def test_what_is_unreadable_waits_for_room_as_others_do():
    queue = Queue()
    queue.poll(4)
    read = LogSlice(first=4, end=9, messages=(LogMessage(4, fault="too much"),))
    assert queue.poll(1, gives=read) == []
    assert (queue.is_full, queue.state.next, queue.state.dead) == (True, 4, ())


def test_what_was_read_beyond_a_hole_is_not_used():
    queue = Queue()
    read = LogSlice(first=1, end=3, messages=(LogMessage(1), LogMessage(2)))
    assert queue.poll(4, gives=read) == []
    assert queue.state.next == 0


def test_what_was_read_twice_is_given_once():
    queue = Queue()
    read = LogSlice(first=0, end=3, messages=(LogMessage(0), LogMessage(1), LogMessage(2)))
    assert offsets(queue.poll(2, gives=read)) == [0, 1]
    assert offsets(queue.poll(2, gives=read)) == [2]


def test_a_delayed_message_waits_and_lets_others_pass():
    queue = Queue(3)
    queue.log[0] = LogMessage(0, 500)
    assert offsets(queue.poll(2)) == [1, 2]
    assert queue.state.next_due() == 500
    assert queue.poll(2, now=499) == []
    token = queue.poll(2, now=500)[0]
    assert (token.offset, token.attempt) == (0, 1)


def test_polls_give_fewer_when_too_much_is_leased():
    queue = Queue()
    tokens = queue.poll(10)
    assert offsets(tokens) == [0, 1, 2, 3]
    assert queue.is_full
    assert queue.poll(10) == []
    queue.settle(Ack, tokens[3])
    assert offsets(queue.poll(10)) == [4]


def test_polls_give_fewer_when_too_much_was_sent_back():
    queue = Queue(10)
    for first in (0, 3):
        tokens = queue.poll(3)
        assert offsets(tokens) == list(range(first, first + 3))
        queue.settle(Nack, *tokens, delay_ms=100)
    assert queue.poll(4) == []
    assert queue.is_full
    assert (len(queue.state.open), queue.state.next) == (6, 6)
    assert offsets(queue.poll(4, now=100)) == [0, 1, 2, 3]


# ---- much later


def bucket(queue, bucket, now, count=100):
    found = queue.state.buckets[bucket]
    end = min(found.first + count, len(queue.log))
    read = LogSlice(first=found.first, end=end, messages=tuple(queue.log[found.first : end]))
    return queue.do(Recall(bucket=bucket, now=now, read=read))


def test_what_is_for_later_holds_up_nothing():
    queue = Queue(10)
    queue.log[:9] = [LogMessage(offset, 5 * DAY_MS) for offset in range(9)]
    assert offsets(queue.poll(4)) == [9]
    assert not queue.is_full
    assert queue.state.bucketed_count == 9
    assert queue.state.floor == 0


def test_a_message_comes_from_days_to_hours_to_minutes_and_is_delivered_once():
    queue = Queue(1)
    time = 5 * DAY_MS + 7 * HOUR_MS + 30 * MINUTE_MS + 5
    queue.log[0] = LogMessage(0, time)
    queue.poll()
    for span in (DAY_MS, HOUR_MS, MINUTE_MS):
        (key,) = queue.state.buckets
        assert key == (span, time - time % span)
        now = queue.state.next_recall.recall_at
        assert queue.poll(now=now) == []
        assert bucket(queue, key, now) == Done(count=1)
    assert not queue.state.buckets
    assert queue.state.open == {0: Waiting(0, time)}
    assert queue.poll(now=time - 1) == []
    (token,) = queue.poll(now=time)
    queue.settle(Ack, token, now=time)
    assert queue.state.floor == 1


def test_a_delay_bucket_has_room_only_while_there_may_be_more_of_them(monkeypatch):
    queue = Queue(1)
    queue.log[0] = LogMessage(0, 5 * DAY_MS)
    queue.poll()
    (found,) = queue.state.buckets.values()
    assert has_room_for(found, queue.state, queue.config)
    monkeypatch.setattr(decide_module, "BUCKETS_MAX", 1)
    assert not has_room_for(found, queue.state, queue.config)


def test_many_for_soon_are_recalled_as_there_is_room():
    queue = Queue(8)
    queue.log[:] = [LogMessage(offset, 100) for offset in range(8)]
    assert queue.poll(8) == []
    assert (len(queue.state.open), queue.state.bucketed_count) == (3, 5)
    assert bucket(queue, (MINUTE_MS, 0), 0) == Done(count=0, is_more=True)
    tokens = queue.poll(8, now=100)
    assert offsets(tokens) == [0, 1, 2]
    queue.settle(Ack, *tokens[:2], now=100)
    assert bucket(queue, (MINUTE_MS, 0), 100) == Done(count=2, is_more=True)
    assert offsets(queue.poll(8, now=100)) == [3, 4]


def test_delay_buckets_outlive_their_leader_and_what_the_log_lost_is_in_none():
    queue = Queue(4)
    queue.log[1:] = [LogMessage(offset, 5 * DAY_MS) for offset in (1, 2, 3)]
    queue.poll(2)
    queue.next_leader(end=3)
    assert queue.state.buckets[DAY_MS, 5 * DAY_MS] == DelayBucket(DAY_MS, 5 * DAY_MS, 1, 3, 3)
    queue.do(Trim(start=2))
    assert queue.state.buckets[DAY_MS, 5 * DAY_MS].first == 2
    queue.do(Trim(start=4))
    assert not queue.state.buckets


def test_a_time_too_far_ahead_makes_a_dead_letter():
    queue = Queue(2)
    queue.log[0] = LogMessage(0, 367 * DAY_MS)
    assert offsets(queue.poll()) == [1]
    assert isinstance(queue.state.open[0], Dead)
    assert "366 days" in queue.state.open[0].reason


def test_delay_buckets_are_bounded(monkeypatch):
    monkeypatch.setattr(draft, "BUCKETS_MAX", 2)
    queue = Queue(4)
    queue.log[:] = [LogMessage(offset, (5 + offset) * DAY_MS) for offset in range(4)]
    assert queue.poll() == []
    assert queue.is_full
    assert (queue.state.next, len(queue.state.buckets)) == (2, 2)


def test_dead_letters_that_cannot_be_moved_hold_deliveries_up():
    queue = Queue(10, replace(CONFIG, attempts_max=1))
    queue.settle(Nack, *queue.poll(4), reason="bad")
    assert queue.poll(4) == []
    assert queue.is_full
    assert queue.do(SettleDead(offsets=frozenset({0, 1}))) == Done(count=2)
    assert offsets(queue.poll(4)) == [4, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"count_max": 0},
        {"visibility_ms": 0},
        {"visibility_ms": CONFIG.visibility_ms_max + 1},
        {"member": ""},
        {"member": "m" * 121},
        {"member": "\ud800"},
    ],
)
def test_a_poll_out_of_bounds_is_refused(wrong):
    queue = Queue()
    command = Poll(**{"member": "m", "count_max": 1, "now": 0, "visibility_ms": 1, **wrong})
    assert queue.do(command) == CommandRefused(Refusal.BAD_ARGUMENT)


# ---- what workers say


def test_a_second_ack_is_reported_as_such():
    queue = Queue()
    (token,) = queue.poll()
    assert queue.settle(Ack, token, token) == [Refusal.NONE, Refusal.SETTLED]
    assert queue.settle(Ack, token) == [Refusal.SETTLED]


def test_a_worker_that_slept_past_its_lease_is_refused_and_another_gets_the_message():
    queue = Queue()
    (token,) = queue.poll(visibility=100)
    assert queue.settle(Ack, token, now=100) == [Refusal.EXPIRED]
    assert queue.do(ExpireDue(now=100)) == Done(count=1)
    assert queue.settle(Ack, token, now=100) == [Refusal.EXPIRED]
    (again,) = queue.poll(now=100, member="bob")
    assert (again.offset, again.attempt) == (0, 2)
    assert queue.settle(Ack, token, now=101) == [Refusal.EXPIRED]
    assert queue.settle(Ack, again, now=101, member="bob") == [Refusal.NONE]
    assert queue.settle(Ack, token, now=101) == [Refusal.SETTLED]


def test_a_token_that_does_not_match_is_refused_with_the_reason():
    queue = Queue()
    (token,) = queue.poll()
    assert queue.settle(Ack, token, member="bob") == [Refusal.NOT_HOLDER]
    assert queue.settle(Ack, token._replace(queue_checksum=1)) == [Refusal.OTHER_QUEUE]
    assert queue.settle(Ack, token._replace(offset=9)) == [Refusal.NEVER_DELIVERED]
    assert queue.settle(Ack, token._replace(attempt=2)) == [Refusal.NEVER_DELIVERED]
    assert queue.settle(Ack, token) == [Refusal.NONE]


def test_a_token_of_another_group_is_refused_as_such():
    tokens = tuple(Queue().poll())
    other = QueueStateMachine(QUEUE._replace(group="h"), CONFIG, 1)
    other.apply(other.decide(TakeOver(epoch=1, now=0, start=0, end=5)).record)
    answer = other.decide(Ack(member="ann", tokens=tokens, now=0)).result
    assert answer == SettleResult(refusals=(Refusal.OTHER_QUEUE,))


def test_what_is_sent_back_pauses_longer_each_time_and_no_longer_than_allowed():
    queue = Queue(1)
    now, pauses = 0, []
    for _ in range(2):
        queue.settle(Nack, *queue.poll(now=now), now=now)
        pauses.append(queue.state.next_due() - now)
        now = queue.state.next_due()
    assert pauses == [100, 150]


def test_a_worker_may_say_how_long_to_wait():
    queue = Queue(1)
    assert queue.settle(Nack, *queue.poll(), delay_ms=7) == [Refusal.NONE]
    assert queue.poll(now=6) == []
    assert len(queue.poll(now=7)) == 1
    command = Nack(member="a", tokens=(), now=0, delay_ms=CONFIG.delay_ms_max + 1)
    assert queue.do(command) == CommandRefused(Refusal.BAD_ARGUMENT)


def test_the_last_attempt_that_fails_makes_a_dead_letter_in_one_record():
    queue = Queue(1)
    for _ in range(2):
        queue.settle(Nack, *queue.poll(), delay_ms=0)
    (token,) = queue.poll()
    decision = queue.machine.decide(Nack(member="ann", tokens=(token,), now=0, reason="ž" * 100))
    assert decision.died == (0,)
    assert decision.record is not None
    assert decision.record.opened == ((0, Dead(3, "ž" * 60)),)
    queue.machine.apply(decision.record)
    assert queue.poll(now=10**9) == []
    assert queue.settle(Ack, token) == [Refusal.DEAD]
    assert queue.do(SettleDead(offsets=frozenset({0, 5}))) == Done(count=1)
    assert queue.settle(Ack, token) == [Refusal.DEAD], "it is not done, and its worker hears of it"
    assert queue.state.floor == queue.state.next == 1


def test_an_extended_lease_lasts_longer():
    queue = Queue()
    (token,) = queue.poll(visibility=100)
    assert queue.settle(Extend, token, now=90, visibility_ms=100) == [Refusal.NONE]
    assert queue.do(ExpireDue(now=189)) == Done(count=0)
    assert queue.settle(Ack, token, now=189) == [Refusal.NONE]


def test_a_lease_that_is_over_is_not_extended():
    queue = Queue()
    (token,) = queue.poll(visibility=100)
    assert queue.settle(Extend, token, now=100, visibility_ms=100) == [Refusal.EXPIRED]
    command = Extend(member="ann", tokens=(token,), now=0, visibility_ms=0)
    assert queue.do(command) == CommandRefused(Refusal.BAD_ARGUMENT)


# ---- what the leader says


def test_expired_leases_are_for_others_at_once_a_bounded_number_at_a_time():
    queue = Queue()
    queue.poll(3, visibility=100)
    assert queue.state.next_expiry() == 100
    assert queue.do(ExpireDue(now=100, count_max=2)) == Done(count=2, is_more=True)
    assert queue.do(ExpireDue(now=100, count_max=2)) == Done(count=1)
    assert offsets(queue.poll(3, now=100)) == [0, 1, 2]


def test_the_messages_of_an_evicted_member_are_for_others_at_once():
    queue = Queue()
    queue.poll(2)
    (kept,) = queue.poll(member="bob")
    assert queue.do(Evict(member="ann", now=5)) == Done(count=2)
    assert queue.state.waiting_count == 2
    assert queue.settle(Ack, kept, member="bob") == [Refusal.NONE]
    assert offsets(queue.poll(2, now=5, member="bob")) == [0, 1]


def test_what_the_log_has_dropped_is_settled():
    queue = Queue()
    tokens = queue.poll(2)
    assert queue.do(Trim(start=1)) == Done(count=1)
    assert queue.settle(Ack, *tokens) == [Refusal.SETTLED, Refusal.NONE]
    queue.do(Trim(start=7))
    assert offsets(queue.poll(1)) == [7]
    assert queue.do(Trim(start=3)) == Done(count=0)
    assert queue.state.next == 8


def test_a_command_that_changes_nothing_writes_nothing():
    queue = Queue(0)
    for command in (
        ExpireDue(now=9),
        Evict(member="x", now=1),
        SettleDead(offsets=frozenset({1})),
        Trim(start=0),
        Poll(member="a", count_max=1, now=0, visibility_ms=1),
    ):
        assert queue.machine.decide(command).record is None


def test_settings_that_allow_less_make_a_dead_letter_instead_of_a_delivery():
    queue = Queue(2)
    queue.settle(Nack, *queue.poll(), delay_ms=0)
    queue.machine.config = replace(CONFIG, attempts_max=1)
    assert offsets(queue.poll(2)) == [1]
    assert queue.died == (0,)


def test_commands_that_are_decided_together_see_each_other():
    queue = Queue(3)
    read = LogSlice(first=0, end=3, messages=tuple(queue.log))
    poll = Poll(member="ann", count_max=2, now=0, visibility_ms=10, read=read)
    commands = [poll, poll, ExpireDue(now=10), replace(poll, now=10)]
    polled: Any = [queue.machine.decide_and_apply(command) for command in commands]
    given = [
        [lease.token.offset for lease in d.result.leases] for d in polled if d is not polled[2]
    ]
    assert given == [[0, 1], [2], [0, 1]]
    assert [d.record.sequence for d in polled] == [2, 3, 4, 5]


# ---- leaders


def test_a_change_of_the_leader_costs_workers_nothing():
    queue = Queue(4, replace(CONFIG, attempts_max=1, visibility_ms_default=1_000))
    a, b, c = queue.poll(3)
    queue.settle(Ack, a)
    assert queue.next_leader(now=50) == Done(count=2)
    assert offsets(queue.poll(4, now=50)) == [3]
    assert queue.settle(Extend, b, now=1_049, visibility_ms=1_000) == [Refusal.NONE]
    queue.next_leader(now=1_049, epoch=3)
    assert queue.settle(Ack, a, b, now=2_048) == [Refusal.SETTLED, Refusal.NONE]
    assert queue.settle(Ack, c, now=2_049) == [Refusal.EXPIRED]


def test_a_lease_that_went_on_under_another_leader_ends_at_last():
    queue = Queue(1)
    (token,) = queue.poll()
    queue.next_leader(now=50)
    ends = 50 + CONFIG.visibility_ms_default
    assert queue.do(ExpireDue(now=ends)) == Done(count=1)
    (again,) = queue.poll(now=ends)
    assert (again.epoch, again.attempt) == (2, 2)
    assert queue.settle(Ack, token, now=ends) == [Refusal.EXPIRED]


def test_a_token_of_a_message_that_was_lost_is_no_good_for_the_one_at_its_place():
    queue = Queue(1)
    (token,) = queue.poll()
    queue.next_leader(end=0)
    (other,) = queue.poll()
    assert (token.offset, token.attempt) == (other.offset, other.attempt)
    assert queue.settle(Ack, token) == [Refusal.OTHER_EPOCH]
    assert queue.settle(Ack, other) == [Refusal.NONE]


def test_delays_and_attempts_survive_the_leader():
    queue = Queue(1)
    queue.settle(Nack, *queue.poll(), delay_ms=70)
    queue.next_leader(now=50)
    assert queue.state.open[0] == Waiting(1, 70)


def test_a_leader_that_loads_again_in_its_epoch_keeps_its_leases():
    queue = Queue()
    (token,) = queue.poll()
    assert queue.next_leader(epoch=1) == Done(count=0)
    assert queue.settle(Ack, token) == [Refusal.NONE]


def test_nothing_is_decided_before_a_leader_has_taken_over():
    queue = Queue()
    machine = QueueStateMachine(QUEUE, CONFIG, 2)
    command = Poll(member="a", count_max=1, now=0, visibility_ms=1)
    assert machine.decide(command).result == CommandRefused(Refusal.NOT_LEADING)
    machine.load([encode(snapshot(queue.state, QUEUE))])
    assert machine.decide(command).result == CommandRefused(Refusal.NOT_LEADING)
    other = TakeOver(epoch=3, now=0, start=0, end=0)
    assert machine.decide(other).result == CommandRefused(Refusal.BAD_ARGUMENT)


def test_a_new_queue_begins_where_it_is_configured():
    machine = QueueStateMachine(QUEUE, CONFIG, 1)
    machine.apply(machine.decide(TakeOver(epoch=1, now=0, start=40, end=50)).record)
    assert machine.state.floor == machine.state.next == 40
    assert machine.decide(TakeOver(epoch=1, now=0, start=9, end=5)).result == CommandRefused(
        Refusal.BAD_ARGUMENT
    )


def test_offsets_that_the_log_lost_are_looked_at_again():
    queue = Queue()
    tokens = queue.poll(4)
    queue.settle(Ack, tokens[2])
    del queue.log[2:]
    queue.next_leader()
    assert (queue.state.next, set(queue.state.open)) == (2, {0, 1})
    queue.log += [LogMessage(2)]
    assert offsets(queue.poll(3)) == [2]


def test_what_is_stored_must_be_of_the_queue_and_in_order():
    stored = encode(snapshot(Queue().state, QUEUE))
    for queue, records in (
        (QUEUE, [stored, stored]),
        (QUEUE._replace(partition=1), [stored]),
        (QUEUE, [(b"\0\x63", b"")]),
    ):
        with pytest.raises(CorruptionError):
            QueueStateMachine(queue, CONFIG, 2).load(records)


# ---- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts_max": 0},
        {"attempts_max": 2**31},
        {"backoff_ms_min": 10, "backoff_ms_max": 9},
        {"leases_max": 5, "open_max": 4},
        {"open_max": 10**6},
        {"visibility_ms_default": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(reversed(wrong)))):
        QueueConfig(**wrong)
