"""Encodes the producer table as a snapshot, on disk and to followers, and loads it from the log.

Version 2 contains transactions; version 1, from brokers without them, can still be read.
"""

from itertools import takewhile
from typing import Final

import msgspec

from moldau.log.disk_log import read_slice
from moldau.log.interface import PartitionLog
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.model.malformed import MALFORMED
from moldau.records.batch import BatchFormatError, BatchHeader
from moldau.records.control import EndMarker, read_end_marker
from moldau.replica.aborted_transactions import AbortedTransactions
from moldau.replica.producers import EndedTransaction, ProducerState, ProducerTable, RememberedBatch

NO_SNAPSHOT: Final = Offset(-1)
_VERSION: Final = 2
_VERSION_WITHOUT_TRANSACTIONS: Final = 1

_Batch = tuple[int, int, int, int, int]
_Plain = list[tuple[int, int, int, list[_Batch]]]
_Producer = tuple[int, int, int, list[_Batch], int, int, int]
_Full = tuple[list[_Producer], list[tuple[int, int]], int, list[bytes]]


def load_producers(
    log: PartitionLog, now: TimestampMs, end: Offset | None = None
) -> tuple[ProducerTable, Offset]:
    """The table for the log, and the offset of the snapshot that it started from.

    `end`: ignore the log from there on; no snapshot may lie beyond it. Raises CorruptionError.
    """
    table, snapshot_offset = _load_snapshot(log)
    start = log.start_offset

    def read_marker(header: BatchHeader) -> EndMarker | None:
        read = log.read(header.base_offset, 1, header.next_offset)
        try:
            return read_end_marker(read_slice(read.data))
        except BatchFormatError as error:
            raise CorruptionError(
                f"invalid transaction marker at offset {header.base_offset}: {error}"
            ) from None

    headers = log.headers(max(snapshot_offset, start))
    if end is not None:
        headers = takewhile(lambda header: header.base_offset < end, headers)
    table.replay(headers, now, read_marker)
    table.aborted.forget_below(start)
    return table, snapshot_offset


def _load_snapshot(log: PartitionLog) -> tuple[ProducerTable, Offset]:
    """Load the snapshot, a shortcut for replaying all batch headers.

    A snapshot from below the log start is unusable: batches between them were deleted, and with
    them ends of transactions and producers' sequences.
    """
    snapshot = log.load_snapshot()
    if snapshot is None:
        return ProducerTable(), NO_SNAPSHOT
    offset, payload = snapshot
    first = next(log.headers(log.start_offset), None)
    if offset < (log.start_offset if first is None else first.base_offset):
        return ProducerTable(), NO_SNAPSHOT
    try:
        return decode_producers(payload), offset
    except CorruptionError:
        return ProducerTable(), NO_SNAPSHOT


def encode_producers(table: ProducerTable) -> bytes:
    rows = [
        (
            producer,
            state.epoch,
            state.seen_at,
            state.batches,
            state.first,
            state.coordinator_epoch,
            state.marked_at,
        )
        for producer, state in table
    ]
    body = (rows, list(table.ended or ()), table.last_marker, table.aborted.encode())
    return msgspec.msgpack.encode((_VERSION, body))


def decode_producers(payload: bytes) -> ProducerTable:
    """Raises CorruptionError."""
    try:
        version, raw = msgspec.msgpack.decode(payload, type=tuple[int, msgspec.Raw])
        if version == _VERSION_WITHOUT_TRANSACTIONS:
            return _from_plain(msgspec.msgpack.decode(raw, type=_Plain))
        if version == _VERSION:
            return _from_full(msgspec.msgpack.decode(raw, type=_Full))
    except MALFORMED as error:
        raise CorruptionError(f"cannot decode the producer snapshot: {error}") from None
    raise CorruptionError(
        f"producer snapshot has version {version}; this broker supports up to {_VERSION}"
    )


def _state(epoch: int, seen_at: int, batches: list[_Batch]) -> ProducerState:
    state = ProducerState(ProducerEpoch(epoch), TimestampMs(seen_at))
    state.batches = [
        RememberedBatch(base, last, Offset(first), Offset(end), TimestampMs(time))
        for base, last, first, end, time in batches
    ]
    return state


def _from_plain(rows: _Plain) -> ProducerTable:
    states = {
        ProducerId(producer): _state(epoch, seen_at, batches)
        for producer, epoch, seen_at, batches in rows
    }
    table = ProducerTable()
    table.restore(states, (), Offset(-1), AbortedTransactions())
    return table


def _from_full(body: _Full) -> ProducerTable:
    rows, ended, last_marker, aborted = body
    states = {}
    for producer, epoch, seen_at, batches, first, coordinator_epoch, marked_at in rows:
        state = states[ProducerId(producer)] = _state(epoch, seen_at, batches)
        state.first = Offset(first)
        state.coordinator_epoch = coordinator_epoch
        state.marked_at = Offset(marked_at)
    table = ProducerTable()
    table.restore(
        states,
        [EndedTransaction(Offset(marker), Offset(first)) for marker, first in ended],
        Offset(last_marker),
        AbortedTransactions.decode(aborted),
    )
    return table
