"""Merges what was found in the partitions of a topic into one sequence.

Of the next hits of all partitions, the one with the first rank comes next (`data/search/scan.py`);
of equal ranks oldest first the lower partition, newest first the higher one. This sequence does not
depend on how far each partition was searched at what time, so a search that was stopped goes on as
if it was not. A hit waits while a partition that was not searched as far may still have one that
comes before it.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from moldau.data.search.types import Hit, Piece, Unreadable

_FIRST: Final = (float("-inf"), 0)
_LAST: Final = (float("inf"), 0)


class Row(NamedTuple):
    """Where the search of one partition is, as in a cursor."""

    partition: int
    position: int
    stop: int
    reached: int | None


class Range(NamedTuple):
    partition: int
    first: int
    end: int


class Part:
    """The search of one partition."""

    def __init__(self, partition: int, row: Row | None, *, newest: bool) -> None:
        self.partition = partition
        self._newest = newest
        self.position: int | None = None if row is None else row.position
        self.stop = 0 if row is None else row.stop
        self.reached: int | None = None if row is None else row.reached
        self.begin = self.position
        self.gone = 0
        """Messages that retention removed before they were searched."""
        self.hits: deque[Hit] = deque()
        self.unreadable: list[Unreadable] = []

    def add(self, piece: Piece) -> None:
        """What the leader searched."""
        if self.position is None:
            self.begin = piece.begin
            self.stop = piece.stop
        else:
            self.stop = piece.stop
        self.gone += piece.gone
        self.position, self.reached = piece.position, piece.reached
        self.hits.extend(piece.hits)
        self.unreadable += piece.unreadable

    @property
    def is_searched(self) -> bool:
        """To its end; there may be hits left."""
        if self.position is None:
            return False
        return self.position <= self.stop if self._newest else self.position >= self.stop

    @property
    def is_done(self) -> bool:
        return self.is_searched and not self.hits

    @property
    def bound(self) -> tuple[float, int]:
        """No hit that is not found yet comes before it."""
        if self.is_searched:
            return _LAST
        return _FIRST if self.reached is None else self._place(self.reached)

    @property
    def head(self) -> tuple[float, int]:
        return self._place(self.hits[0].rank)

    def _place(self, rank: int) -> tuple[int, int]:
        return (-rank, -self.partition) if self._newest else (rank, self.partition)

    def row(self) -> Row | None:
        """Where to go on: at the first hit that is left. None: it is done, or has not begun."""
        if self.position is None or self.is_done:
            return None
        if not self.hits:
            return Row(self.partition, self.position, self.stop, self.reached)
        first = self.hits[0]
        position = first.offset + 1 if self._newest else first.offset
        return Row(self.partition, position, self.stop, first.reached)

    def searched(self) -> Range | None:
        """What of it was shown or left out so far."""
        if self.begin is None or self.position is None:
            return None
        row = self.row()
        at = self.position if row is None else row.position
        return Range(self.partition, *((at, self.begin) if self._newest else (self.begin, at)))

    def left(self) -> int:
        row = self.row()
        return 0 if row is None else abs(row.position - row.stop)

    def skipped(self) -> list[Unreadable]:
        """What could not be read, of what is behind the cursor."""
        row = self.row()
        if row is None:
            return self.unreadable
        if self._newest:
            return [one for one in self.unreadable if one.first >= row.position]
        return [one for one in self.unreadable if one.last < row.position]


class Merge:
    """The partitions of one page."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    @property
    def is_done(self) -> bool:
        return all(part.is_done for part in self.parts)

    def take(self, limit: int, bytes_max: int) -> list[tuple[int, Hit]]:
        """The next hits of the sequence, as far as they are certain; the last may exceed
        `bytes_max`."""
        heads = [(part.head, part) for part in self.parts if part.hits]
        barrier = min((part.bound for part in self.parts if not part.hits), default=_LAST)
        heap = [(head, at) for at, (head, _) in enumerate(heads)]
        heapq.heapify(heap)
        taken: list[tuple[int, Hit]] = []
        while heap and len(taken) < limit and bytes_max > 0:
            head, at = heap[0]
            if head > barrier:
                break
            part = heads[at][1]
            hit = part.hits.popleft()
            taken.append((part.partition, hit))
            bytes_max -= hit.size
            if part.hits:
                heapq.heapreplace(heap, (part.head, at))
            else:
                heapq.heappop(heap)
                barrier = min(barrier, part.bound)
        return taken

    def waiting(self) -> list[Part]:
        """The partitions to search next, the most urgent first: those that keep hits waiting."""
        first = min((part.head for part in self.parts if part.hits), default=_LAST)
        return sorted(
            (
                part
                for part in self.parts
                if not part.hits and not part.is_searched and part.bound <= first
            ),
            key=lambda part: part.bound,
        )

    def held_bytes(self) -> int:
        return sum(hit.size for part in self.parts for hit in part.hits)

    def rows(self) -> list[Row]:
        return [row for row in (part.row() for part in self.parts) if row is not None]


def ranges_of(parts: Iterable[Part]) -> list[Range]:
    """Those in which there was something."""
    found = (part.searched() for part in parts)
    return [each for each in found if each is not None and each.end > each.first]
