"""Owns what must hold of a queue's state, one fact each; for tests and simulations."""

from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.delay_buckets import BUCKETS_MAX
from moldau.groups.queue.state import Dead, Leased, QueueState, Waiting


class InvariantError(Exception):
    """A defect of ours."""


def check_invariants(state: QueueState, config: QueueConfig) -> None:
    """Under one and the same config ever since the queue began. Raises InvariantError."""
    leased = [offset for offset, entry in state.open.items() if isinstance(entry, Leased)]
    waiting = [offset for offset, entry in state.open.items() if isinstance(entry, Waiting)]
    dead = [offset for offset, entry in state.open.items() if isinstance(entry, Dead)]
    _require(all(0 <= offset < state.next for offset in state.open), "what is open was looked at")
    firsts = [*state.open, *(shelf.first for shelf in state.shelves.values())]
    _require(
        state.floor == min(firsts, default=state.next), "the floor is the first that is not settled"
    )
    for key, shelf in state.shelves.items():
        _require(
            key == shelf.key and shelf.begin % shelf.span_ms == 0, "a shelf is where it belongs"
        )
        _require(0 <= shelf.first < shelf.end <= state.next, "a shelf holds what was looked at")
    _require(len(state.shelves) <= BUCKETS_MAX, "shelves are bounded")
    _require(
        sorted(leased) == sorted(offset for offset, _ in state.leases_by_deadline()),
        "every lease has its deadline",
    )
    _require(
        sorted(waiting) == sorted(offset for offset, _ in state.waiting_by_time()),
        "every message that waits has its time",
    )
    _require(sorted(dead) == [offset for offset, _ in state.dead], "every dead letter is listed")
    deadlines = [entry.deadline for _, entry in state.leases_by_deadline()]
    _require(deadlines == sorted(deadlines), "leases are in the order of their deadlines")
    times = [entry.not_before for _, entry in state.waiting_by_time()]
    _require(times == sorted(times), "what waits is in the order of its time")
    _require(len(state.open) <= config.open_max, "what is open is bounded")
    _require(len(leased) + len(dead) <= config.leases_max, "leases are bounded")
    ranges = list(state.settled_ranges())
    _require(len(ranges) <= len(state.open) + 1, "between two settled ranges something is open")
    settled = sum(end - first for first, end in ranges)
    _require(
        settled + len(state.open) == state.next - state.floor,
        "every offset above the floor is open or settled",
    )
    for entry in state.open.values():
        _require(entry.attempts <= config.attempts_max, "no message is tried too often")
        if isinstance(entry, Waiting):
            _require(entry.attempts < config.attempts_max, "what waits has attempts left")
        elif isinstance(entry, Leased):
            _require(entry.attempts >= 1, "what is leased was delivered")


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise InvariantError(f"broken: {fact}")
