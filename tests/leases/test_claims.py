"""Claims: exactly the messages that a worker names, wherever they are in the log."""

import pytest
from lease_queue import CONFIG, Queue

from moldau.leases.commands import Ack, Claim, LogMessage, LogSlice, Nack
from moldau.leases.delay_buckets import DAY_MS
from moldau.leases.results import CommandRefused, GrantedLeases, Refusal
from moldau.leases.state import Dead, Leased, Waiting
from moldau.model.ids import Offset, TimestampMs


def claim(queue, *offsets, now=0, member="ann", reads=True, visibility=1_000):
    first = queue.state.next
    end = Offset(len(queue.log))
    read = LogSlice(first=first, end=end, messages=tuple(queue.log[first:]))
    answer = queue.do(
        Claim(
            member=member,
            offsets=frozenset(offsets),
            now=now,
            visibility_ms=visibility,
            **({"read": read} if reads else {}),
        )
    )
    assert isinstance(answer, GrantedLeases)
    queue.is_full = answer.is_full
    return [lease.token for lease in answer.leases]


def test_a_claim_leases_what_it_names_and_opens_what_it_passes():
    queue = Queue(4)
    (token,) = claim(queue, 2)
    assert (token.offset, token.attempt) == (2, 1)
    assert queue.state.next == 4
    assert [type(queue.state.get(offset)) for offset in range(4)] == [
        Waiting,
        Waiting,
        Leased,
        Waiting,
    ]
    assert [each.offset for each in queue.poll(3)] == [0, 1, 3]
    assert queue.settle(Ack, token) == [Refusal.NONE]


def test_a_claim_gets_nothing_that_is_leased_or_settled_and_what_waits_before_it_is_due():
    queue = Queue(3)
    leased, settled, waiting = queue.poll(3)
    queue.settle(Ack, settled)
    queue.settle(Nack, waiting, delay_ms=60_000)
    (token,) = claim(queue, 0, 1, 2, 9, member="bob")
    assert (token.offset, token.attempt) == (2, 2)
    assert queue.settle(Ack, leased) == [Refusal.NONE]


def test_a_claim_stops_where_too_many_messages_are_open():
    queue = Queue(20)
    assert [each.offset for each in claim(queue, 0, 19)] == [0]
    assert queue.is_full
    assert queue.state.next == CONFIG.open_max
    # What is open can still be claimed; of leases, too, there are only so many.
    assert len(claim(queue, 1, 2, 3, 4, 5, reads=False)) == CONFIG.leases_max - 1
    assert queue.is_full


def test_a_claim_buries_what_cannot_be_read_and_leaves_what_is_delayed():
    queue = Queue(3)
    queue.log[0] = LogMessage(Offset(0), fault="unreadable")
    queue.log[1] = LogMessage(Offset(1), deliver_at=TimestampMs(500))
    assert [each.offset for each in claim(queue, 0, 1, 2)] == [2]
    assert isinstance(queue.state.get(0), Dead)
    assert queue.state.get(1) == Waiting(0, TimestampMs(500))
    late = Queue(2)
    late.log[0] = LogMessage(Offset(0), deliver_at=TimestampMs(2 * DAY_MS))
    assert [each.offset for each in claim(late, 0, 1)] == [1]
    assert late.state.bucketed_count == 1


def test_a_claim_with_a_gap_before_it_reads_nothing():
    queue = Queue(5)
    read = LogSlice(first=Offset(2), end=Offset(5), messages=tuple(queue.log[2:]))
    answer = queue.do(
        Claim(
            member="ann",
            offsets=frozenset({Offset(3)}),
            now=TimestampMs(0),
            visibility_ms=1_000,
            read=read,
        )
    )
    assert answer == GrantedLeases(leases=())
    assert queue.state.next == 0


@pytest.mark.parametrize("fields", [{"member": ""}, {"member": "x" * 200}, {"visibility_ms": 0}])
def test_a_claim_out_of_bounds_is_refused(fields):
    command = {"member": "ann", "offsets": frozenset({0}), "now": 0, "visibility_ms": 1_000}
    answer = Queue(1).do(Claim(**{**command, **fields}))
    assert answer == CommandRefused(Refusal.BAD_ARGUMENT)


def test_a_claim_takes_nothing_before_its_time_that_was_never_delivered():
    queue = Queue(2)
    queue.log[0] = LogMessage(Offset(0), deliver_at=TimestampMs(500))
    claim(queue, 1)
    assert claim(queue, 0, now=499) == []
    assert [each.offset for each in claim(queue, 0, now=500)] == [0]


def test_a_claim_buries_what_was_tried_often_enough():
    queue = Queue(1)
    for _ in range(CONFIG.attempts_max - 1):
        (token,) = claim(queue, 0)
        assert queue.settle(Nack, token, delay_ms=0) == [Refusal.NONE]
    (token,) = claim(queue, 0)
    queue.settle(Nack, token)
    assert isinstance(queue.state.get(Offset(0)), Dead)
    assert claim(queue, 0) == []
