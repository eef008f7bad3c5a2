"""Invariants of the transaction coordinator; checked after every step of a simulation."""

from collections.abc import Mapping

from moldau.model.invariants import require
from moldau.model.timers import Timers
from moldau.transactions.records import TransactionState
from moldau.transactions.timers import TimerKey, TimerKind
from moldau.transactions.transaction_entry import TransactionEntry, TransactionWrite


def check_invariants(
    entries: Mapping[str, TransactionEntry],
    writes: Mapping[int, TransactionWrite],
    timers: Timers[TimerKey],
) -> None:
    writing = {entry.writing for entry in entries.values() if entry.writing is not None}
    require(writing == set(writes), "a write in flight belongs to one id")
    for name, entry in entries.items():
        require(entry.transactional_id == name, "an entry is indexed by its id")
        require(not entry.is_empty, "an id without state is dropped")
        _check_state(entry, timers)
        _check_markers(entry, timers)
        for request_id in entry.parked:
            busy = TimerKey(TimerKind.BUSY, name, request_id)
            require(timers.deadline(busy) is not None, "every waiting request has a timeout")
        if entry.parked and entry.writing is None:
            is_prepared = entry.stored is not None and entry.stored.state.is_prepared
            require(is_prepared, "requests wait only for a write or the end of a transaction")


def _check_state(entry: TransactionEntry, timers: Timers[TimerKey]) -> None:
    stored = entry.stored
    if stored is None:
        return
    is_open = stored.state is TransactionState.ONGOING
    timeout = timers.deadline(TimerKey(TimerKind.TIMEOUT, entry.transactional_id))
    require((timeout is not None) == is_open, "exactly the open transactions time out")
    if is_open:
        require(bool(stored.partitions), "an open transaction has partitions")
        require(stored.started_at >= 0, "an open transaction has begun")
    elif not stored.state.is_prepared:
        require(not stored.partitions, "a transaction that has ended has no partitions")


def _check_markers(entry: TransactionEntry, timers: Timers[TimerKey]) -> None:
    stored = entry.stored
    requested = [one for partitions in entry.marker_requests.values() for one in partitions]
    require(len(requested) == len(set(requested)), "a marker is requested once at a time")
    require(set(requested) <= entry.unmarked, "only missing markers are requested")
    if stored is None or not stored.state.is_prepared:
        require(not entry.unmarked, "markers are missing only while a transaction ends")
        return
    require(entry.unmarked <= stored.partitions, "only its partitions lack markers")
    if entry.writing is None:
        retry = timers.deadline(TimerKey(TimerKind.RETRY, entry.transactional_id))
        is_coming = bool(entry.unmarked) and set(requested) == entry.unmarked
        require(is_coming or retry is not None, "an ending transaction makes progress")
