"""The aborted transactions of a partition, for read_committed consumers.

A fetch response holds the records of aborted transactions too, with the list of those that overlap
it; the consumer filters their records. The list is ordered by marker offset. Each entry keeps the
last stable offset after its marker: transactions aborted later begin at or above it, so a search
ends at the first entry whose stable offset lies beyond the range.
"""

import sys
from array import array
from bisect import bisect_left
from typing import NamedTuple

from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, ProducerId

_COLUMN_COUNT = 4
_TYPE = "q"


class AbortedTransaction(NamedTuple):
    """A producer's records from `first` up to its abort marker at `last`."""

    producer_id: ProducerId
    first: Offset
    last: Offset
    stable: Offset
    """The last stable offset after the marker was appended."""


class AbortedTransactions:
    """Stored as columns of integers: a log may hold very many."""

    __slots__ = ("_firsts", "_lasts", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array(_TYPE)
        self._firsts = array(_TYPE)
        self._lasts = array(_TYPE)
        self._stables = array(_TYPE)

    def __len__(self) -> int:
        return len(self._lasts)

    def append(self, producer: ProducerId, first: Offset, last: Offset, stable: Offset) -> None:
        """Add the transaction that an abort marker ended; markers come in offset order."""
        self._producers.append(producer)
        self._firsts.append(first)
        self._lasts.append(last)
        self._stables.append(stable)

    def between(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """Transactions that have records, or their marker, in this range."""
        found = []
        for place in range(bisect_left(self._lasts, start), len(self._lasts)):
            if self._firsts[place] < end:
                found.append(self._at(place))
            if self._stables[place] >= end:
                break
        return found

    def all(self) -> list[AbortedTransaction]:
        return [self._at(place) for place in range(len(self._lasts))]

    def _at(self, place: int) -> AbortedTransaction:
        return AbortedTransaction(
            ProducerId(self._producers[place]),
            Offset(self._firsts[place]),
            Offset(self._lasts[place]),
            Offset(self._stables[place]),
        )

    def forget_below(self, offset: Offset) -> None:
        """Drop transactions whose marker is below `offset`, the new log start."""
        place = bisect_left(self._lasts, offset)
        if place:
            for column in (self._producers, self._firsts, self._lasts, self._stables):
                del column[:place]

    # ---- snapshots

    def encode(self) -> list[bytes]:
        columns = (self._producers, self._firsts, self._lasts, self._stables)
        return [_little_endian(column).tobytes() for column in columns]

    @classmethod
    def decode(cls, columns: list[bytes]) -> "AbortedTransactions":
        if len(columns) != _COLUMN_COUNT or len({len(column) for column in columns}) != 1:
            raise CorruptionError("the list of aborted transactions has columns of unequal length")
        aborted = cls()
        loaded = (aborted._producers, aborted._firsts, aborted._lasts, aborted._stables)
        for column, data in zip(loaded, columns, strict=True):
            try:
                column.frombytes(data)
            except ValueError:
                raise CorruptionError("the list of aborted transactions is truncated") from None
            if sys.byteorder == "big":
                column.byteswap()
        return aborted


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = array(_TYPE, column)
    swapped.byteswap()
    return swapped
