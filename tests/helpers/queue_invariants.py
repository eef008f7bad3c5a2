"""Invariants of a queue's state, and the record of all of it."""

from collections.abc import Iterator

from moldau.leases.config import QueueConfig
from moldau.leases.delay_buckets import BUCKETS_MAX
from moldau.leases.state import Dead, Leased, QueueId, QueueRecord, QueueState, Waiting
from moldau.model.ids import Offset
from moldau.model.invariants import require


def snapshot(state: QueueState, queue: QueueId) -> QueueRecord:
    """A record of the whole state."""
    return QueueRecord(
        queue=queue,
        sequence=state.sequence,
        epoch=state.epoch,
        next=state.next,
        opened=tuple(sorted(state.open.items())),
        is_snapshot=True,
        buckets=tuple(state.buckets[key] for key in sorted(state.buckets)),
    )


def settled_ranges(state: QueueState) -> Iterator[tuple[Offset, Offset]]:
    """Settled ranges above the floor (first, end)."""
    first = state.floor
    for offset in sorted(state.open):
        if first < offset:
            yield first, offset
        first = Offset(offset + 1)
    if first < state.next:
        yield first, state.next


def check_invariants(state: QueueState, config: QueueConfig) -> None:
    """The config must be the same since the queue was created. Raises InvariantError."""
    leased = [offset for offset, entry in state.open.items() if isinstance(entry, Leased)]
    waiting = [offset for offset, entry in state.open.items() if isinstance(entry, Waiting)]
    dead = [offset for offset, entry in state.open.items() if isinstance(entry, Dead)]
    require(all(0 <= offset < state.next for offset in state.open), "open offsets are below next")
    firsts = [*state.open, *(bucket.first for bucket in state.buckets.values())]
    require(
        state.floor == min(firsts, default=state.next),
        "the floor is the first offset that is not settled",
    )
    for key, bucket in state.buckets.items():
        require(
            key == bucket.key and bucket.begin % bucket.span_ms == 0,
            "a bucket has the key of its span",
        )
        require(0 <= bucket.first < bucket.end <= state.next, "the range of a bucket is below next")
    require(len(state.buckets) <= BUCKETS_MAX, "buckets are bounded")
    require(
        sorted(leased) == sorted(offset for offset, _ in state.leases_by_deadline()),
        "every lease has its deadline",
    )
    require(
        sorted(waiting) == sorted(offset for offset, _ in state.waiting_by_time()),
        "every waiting message has its time",
    )
    require(sorted(dead) == [offset for offset, _ in state.dead], "every dead letter is listed")
    deadlines = [entry.deadline for _, entry in state.leases_by_deadline()]
    require(deadlines == sorted(deadlines), "leases are ordered by deadline")
    times = [entry.not_before for _, entry in state.waiting_by_time()]
    require(times == sorted(times), "waiting messages are ordered by time")
    require(len(state.open) <= config.open_max, "open messages are bounded")
    require(len(leased) + len(dead) <= config.leases_max, "leases are bounded")
    ranges = list(settled_ranges(state))
    require(len(ranges) <= len(state.open) + 1, "settled ranges are separated by open offsets")
    settled = sum(end - first for first, end in ranges)
    require(
        settled + len(state.open) == state.next - state.floor,
        "every offset above the floor is open or settled",
    )
    for entry in state.open.values():
        require(entry.attempts <= config.attempts_max, "no message exceeds attempts_max")
        if isinstance(entry, Waiting):
            require(entry.attempts < config.attempts_max, "a waiting message has attempts left")
        elif isinstance(entry, Leased):
            require(entry.attempts >= 1, "a leased message was delivered")
