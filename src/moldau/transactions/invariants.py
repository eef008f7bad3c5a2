"""Owns what must always be true of a coordinator; checked after every step of a simulation."""

from collections.abc import Mapping

from moldau.model.errors import MoldauError
from moldau.transactions.records import TransactionState
from moldau.transactions.timers import TimerKey, TimerKind, Timers
from moldau.transactions.transaction_entry import TransactionEntry, TransactionWrite


class InvariantError(MoldauError):
    """The coordinator contradicts itself: a bug."""


def check_invariants(
    entries: Mapping[str, TransactionEntry], writes: Mapping[int, TransactionWrite], timers: Timers
) -> None:
    writing = {entry.writing for entry in entries.values() if entry.writing is not None}
    _require(writing == set(writes), "a write under way belongs to one id")
    for name, entry in entries.items():
        _require(entry.transactional_id == name, "an entry is filed under its id")
        _require(not entry.forgettable, "an id of which nothing is left is forgotten")
        _check_state(entry, timers)
        _check_markers(entry, timers)
        for request_id in entry.parked:
            busy = TimerKey(TimerKind.BUSY, name, request_id)
            _require(timers.deadline(busy) is not None, "nobody waits for ever")
        if entry.parked and entry.writing is None:
            is_prepared = entry.stored is not None and entry.stored.state.is_prepared
            _require(is_prepared, "requests wait only for something")


def _check_state(entry: TransactionEntry, timers: Timers) -> None:
    stored = entry.stored
    if stored is None:
        return
    is_open = stored.state is TransactionState.ONGOING
    timeout = timers.deadline(TimerKey(TimerKind.TIMEOUT, entry.transactional_id))
    _require((timeout is not None) == is_open, "an open transaction, and no other, times out")
    if is_open:
        _require(bool(stored.partitions), "an open transaction has partitions")
        _require(stored.started_at >= 0, "an open transaction has begun")
    elif not stored.state.is_prepared:
        _require(not stored.partitions, "a transaction that has ended has no partitions")


def _check_markers(entry: TransactionEntry, timers: Timers) -> None:
    stored = entry.stored
    asked = [partition for partitions in entry.asked.values() for partition in partitions]
    _require(len(asked) == len(set(asked)), "a marker is asked for once at a time")
    _require(set(asked) <= entry.unmarked, "only markers that lack are asked for")
    if stored is None or not stored.state.is_prepared:
        _require(not entry.unmarked, "markers lack only while a transaction ends")
        return
    _require(entry.unmarked <= stored.partitions, "markers lack in the transaction's partitions")
    if entry.writing is None:
        retry = timers.deadline(TimerKey(TimerKind.RETRY, entry.transactional_id))
        is_coming = bool(entry.unmarked) and set(asked) == entry.unmarked
        _require(is_coming or retry is not None, "a transaction that ends goes on to its end")


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise InvariantError(f"broken: {fact}")
