"""Owns the stored form of the table of producers, beside the log and on the way to a follower.

Version 2 knows transactions; version 1, of brokers that knew none, is still read.
"""

from typing import Final

import msgspec

from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.replica.aborted import AbortedList
from moldau.replica.producers import Ended, ProducerState, ProducerTable, RememberedBatch

_VERSION: Final = 2
_VERSION_WITHOUT_TRANSACTIONS: Final = 1

_Batch = tuple[int, int, int, int, int]
_Plain = list[tuple[int, int, int, list[_Batch]]]
_Producer = tuple[int, int, int, list[_Batch], int, int]
_Full = tuple[list[_Producer], list[tuple[int, int]], int, list[bytes]]


def encode_producers(table: ProducerTable) -> bytes:
    rows = [
        (
            producer,
            state.epoch,
            state.seen_at,
            state.batches,
            state.first,
            state.coordinator_epoch,
        )
        for producer, state in table
    ]
    body = (rows, list(table.ended), table.last_marker, table.aborted.encode())
    return msgspec.msgpack.encode((_VERSION, body))


def decode_producers(payload: bytes) -> ProducerTable:
    """Raises CorruptionError."""
    try:
        version, raw = msgspec.msgpack.decode(payload, type=tuple[int, msgspec.Raw])
        if version == _VERSION_WITHOUT_TRANSACTIONS:
            return _from_plain(msgspec.msgpack.decode(raw, type=_Plain))
        if version == _VERSION:
            return _from_full(msgspec.msgpack.decode(raw, type=_Full))
    except msgspec.DecodeError as error:
        raise CorruptionError(f"producer snapshot cannot be read: {error}") from None
    raise CorruptionError(f"producer snapshot of version {version}; this broker knows {_VERSION}")


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
    table.restore(states, (), Offset(-1), AbortedList())
    return table


def _from_full(body: _Full) -> ProducerTable:
    rows, ended, last_marker, aborted = body
    states = {}
    for producer, epoch, seen_at, batches, first, coordinator_epoch in rows:
        state = states[ProducerId(producer)] = _state(epoch, seen_at, batches)
        state.first = Offset(first)
        state.coordinator_epoch = coordinator_epoch
    table = ProducerTable()
    table.restore(
        states,
        [Ended(Offset(marker), Offset(first)) for marker, first in ended],
        Offset(last_marker),
        AbortedList.decode(aborted),
    )
    return table
