"""Owns the list of a partition's aborted transactions, for consumers that read committed.

Such a consumer is sent the records of aborted transactions as well, and the list of those that
reach into what it is sent; it leaves their records out. The list is ordered by the markers. Each
entry also holds the last stable offset just after its marker: whatever was aborted later begins
there or behind, so a search ends at the first entry whose stable offset lies beyond its range.
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
    """Records of a producer from `first` on, up to its marker at `last`, were never committed."""

    producer_id: ProducerId
    first: Offset
    last: Offset
    stable: Offset
    """The last stable offset once the marker was there."""


class AbortedTransactions:
    """In columns of numbers: a log may hold very many."""

    __slots__ = ("_firsts", "_lasts", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array(_TYPE)
        self._firsts = array(_TYPE)
        self._lasts = array(_TYPE)
        self._stables = array(_TYPE)

    def __len__(self) -> int:
        return len(self._lasts)

    def append(self, producer: ProducerId, first: Offset, last: Offset, stable: Offset) -> None:
        """A marker was appended; its offset is above all before."""
        self._producers.append(producer)
        self._firsts.append(first)
        self._lasts.append(last)
        self._stables.append(stable)

    def between(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """Those that have records, or their marker, in this range."""
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
        """The log begins there now, or holds nothing of them below."""
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
                raise CorruptionError("the list of aborted transactions is cut") from None
            if sys.byteorder == "big":
                column.byteswap()
        return aborted


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = array(_TYPE, column)
    swapped.byteswap()
    return swapped
