"""Owns what is known of a queue: which messages are settled, leased, waiting or dead.

    settled … settled │ open, settled, open, … │ not looked at
                    floor                     next

Every offset below `next` is either open, and then in a table, or settled: acknowledged, moved to
the dead letters, or no message at all; or it is to be delivered much later, and on a shelf. So acks
in any order take no room; what is bounded is how many are open. Only committed records change a
state, in `apply`, which takes every record that can be decoded, and reads no clock and no settings.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from moldau.groups.queue.delay_buckets import BucketKey, DelayBucket
from moldau.model.ids import NO_EPOCH, Epoch, Offset, PartitionIndex, TimestampMs, TopicId


class QueueId(NamedTuple):
    """One queue group on one partition. By the topic's id: a topic made anew has another queue."""

    group: str
    topic_id: TopicId
    partition: PartitionIndex


class Leased(Struct, frozen=True):
    """A worker has it until the deadline."""

    attempts: int
    """Deliveries so far, this one included: its number is in the token."""
    holder: str
    deadline: TimestampMs
    epoch: Epoch
    """Of the leader that gave it: it is in the token too."""


class Waiting(Struct, frozen=True):
    """To be delivered, not before a time."""

    attempts: int
    not_before: TimestampMs


class Dead(Struct, frozen=True):
    """Never delivered again; on its way to the dead-letter topic."""

    attempts: int
    """0 for what could never be delivered."""
    reason: str


Open: TypeAlias = Leased | Waiting | Dead


class QueueRecord(Struct, frozen=True, kw_only=True):
    """A change of the state, or with `is_snapshot` all of it. The only way a state changes."""

    queue: QueueId
    sequence: int
    """Counts the records of a queue, from 1."""
    epoch: Epoch
    next: Offset
    settled: tuple[Offset, ...] = ()
    """Open before, now settled; ascending. Empty in a snapshot."""
    opened: tuple[tuple[Offset, Open], ...] = ()
    """Open as of now, ascending; offsets that `next` passes and that are not here are settled."""
    is_snapshot: bool = False
    shelves: tuple[DelayBucket, ...] = ()
    """As they are now, by their keys; an empty one is gone."""


_BURIED_MAX: Final = 1_000
"""Dead letters whose workers may still come with an ack."""


class QueueState:
    """The state of one queue. `epoch` is that of the leader whose leases are in it."""

    __slots__ = (
        "_buried",
        "_dead",
        "_deadlines",
        "_due",
        "_next_recall",
        "_offsets",
        "_open",
        "_shelf_floor",
        "_shelves",
        "epoch",
        "next",
        "sequence",
    )

    def __init__(self) -> None:
        self.sequence = 0
        self.epoch: Epoch = NO_EPOCH
        self.next = Offset(0)
        """The first offset that was never looked at."""
        self._open: dict[Offset, Open] = {}
        # The same by order. Lists: moving some thousand pointers costs less than a tree in Python.
        self._offsets: list[Offset] = []
        self._deadlines: list[tuple[TimestampMs, Offset]] = []
        self._due: list[tuple[TimestampMs, Offset]] = []
        self._dead: set[Offset] = set()
        self._buried: dict[Offset, None] = {}
        """The last ones, as far as they were seen: no part of what is stored."""
        self._shelves: dict[BucketKey, DelayBucket] = {}
        self._shelf_floor = Offset(0)
        self._next_recall: DelayBucket | None = None

    # ---- reading

    @property
    def exists(self) -> bool:
        return self.sequence > 0

    @property
    def floor(self) -> Offset:
        """Everything below is settled; the log may forget it as far as this queue is concerned."""
        opened = self._offsets[0] if self._offsets else self.next
        return min(opened, self._shelf_floor) if self._shelves else opened

    @property
    def open(self) -> Mapping[Offset, Open]:
        return MappingProxyType(self._open)

    def get(self, offset: Offset) -> Open | None:
        return self._open.get(offset)

    @property
    def shelves(self) -> Mapping[BucketKey, DelayBucket]:
        return MappingProxyType(self._shelves)

    @property
    def delayed_bucket_count(self) -> int:
        """No more than these."""
        return sum(shelf.count for shelf in self._shelves.values())

    def next_recall(self) -> DelayBucket | None:
        """The shelf that is to be taken from first."""
        return self._next_recall

    @property
    def leased_count(self) -> int:
        return len(self._deadlines)

    @property
    def waiting_count(self) -> int:
        return len(self._due)

    @property
    def dead(self) -> tuple[tuple[Offset, Dead], ...]:
        """What is to be moved to the dead letters, by offset."""
        found = ((offset, self._open[offset]) for offset in sorted(self._dead))
        return tuple((offset, entry) for offset, entry in found if isinstance(entry, Dead))

    @property
    def dead_count(self) -> int:
        return len(self._dead)

    def was_dead_lettered(self, offset: Offset) -> bool:
        """Whether it was moved to the dead letters a short while ago."""
        return offset in self._buried

    def settled_ranges(self) -> Iterator[tuple[Offset, Offset]]:
        """What is settled above the floor: first offsets and the ends after them."""
        first = self.floor
        for offset in self._offsets:
            if first < offset:
                yield first, offset
            first = Offset(offset + 1)
        if first < self.next:
            yield first, self.next

    def leases_by_deadline(self) -> Iterator[tuple[Offset, Leased]]:
        for _, offset in self._deadlines:
            entry = self._open[offset]
            if isinstance(entry, Leased):
                yield offset, entry

    def waiting_by_time(self) -> Iterator[tuple[Offset, Waiting]]:
        for _, offset in self._due:
            entry = self._open[offset]
            if isinstance(entry, Waiting):
                yield offset, entry

    def open_below(self, end: Offset) -> tuple[Offset, ...]:
        return tuple(self._offsets[: bisect_left(self._offsets, end)])

    def next_expiry(self) -> TimestampMs | None:
        """When the next lease ends; a lease whose time is past shows here until it is expired."""
        return self._deadlines[0][0] if self._deadlines else None

    def next_due(self) -> TimestampMs | None:
        """When the next message that waits may be delivered."""
        return self._due[0][0] if self._due else None

    def snapshot(self, queue: QueueId) -> QueueRecord:
        """The record that leads to this state."""
        return QueueRecord(
            queue=queue,
            sequence=self.sequence,
            epoch=self.epoch,
            next=self.next,
            opened=tuple((offset, self._open[offset]) for offset in self._offsets),
            is_snapshot=True,
            shelves=tuple(self._shelves[key] for key in sorted(self._shelves)),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QueueState):
            return NotImplemented
        return (self.sequence, self.epoch, self.next, self._open, self._shelves) == (
            other.sequence,
            other.epoch,
            other.next,
            other._open,
            other._shelves,
        )

    # ---- changing

    def follows(self, record: QueueRecord) -> bool:
        """Whether the record is the next one.

        A snapshot may be any that is newer, or a reader could not begin with one; and only a
        snapshot begins an epoch, so what an earlier leader still sends is told by its number.
        """
        if record.is_snapshot:
            return record.epoch >= self.epoch and record.sequence > self.sequence
        return self.exists and record.epoch == self.epoch and record.sequence == self.sequence + 1

    def apply(self, record: QueueRecord) -> bool:
        """Take a committed record. False, and nothing is changed, for one that does not follow."""
        if not self.follows(record):
            return False
        if record.is_snapshot:
            self._replace(record)
        else:
            self._change(record)
        self.sequence = record.sequence
        self.epoch = record.epoch
        return True

    def _replace(self, record: QueueRecord) -> None:
        """All at once: one by one, thousands of them would hold up the loop."""
        after = dict(record.opened)
        for offset in self._dead:
            if offset not in after:
                self._bury(offset)
        self._open = after
        self._offsets = sorted(self._open)
        self._deadlines = []
        self._due = []
        self._dead = set()
        for offset, entry in self._open.items():
            match entry:
                case Leased():
                    self._deadlines.append((entry.deadline, offset))
                case Waiting():
                    self._due.append((entry.not_before, offset))
                case Dead():
                    self._dead.add(offset)
        self._deadlines.sort()
        self._due.sort()
        self._shelves = {shelf.key: shelf for shelf in record.shelves}
        self._index_shelves()
        self.next = record.next

    def _change(self, record: QueueRecord) -> None:
        seen = self.next
        for offset in record.settled:
            self._remove(offset)
        for offset, entry in record.opened:
            # What is settled stays settled, whatever a record says: no ack is ever undone.
            if offset >= seen or offset in self._open or self._is_recalled(offset, record):
                self._put(offset, entry)
        for shelf in record.shelves:
            if shelf.is_empty:
                self._shelves.pop(shelf.key, None)
            else:
                self._shelves[shelf.key] = shelf
        if record.shelves:
            self._index_shelves()
        self.next = max(seen, record.next)

    def _index_shelves(self) -> None:
        shelves = self._shelves.values()
        self._shelf_floor = min((shelf.first for shelf in shelves), default=Offset(0))
        # Of two the longer span first: it may hold what belongs onto the other.
        self._next_recall = min(
            shelves, key=lambda shelf: (shelf.recall_at, -shelf.span_ms), default=None
        )

    def _is_recalled(self, offset: Offset, record: QueueRecord) -> bool:
        """Whether the record takes that part of the log off a shelf."""
        return any(
            before.first <= offset < after.first
            for after in record.shelves
            if (before := self._shelves.get(after.key)) is not None
        )

    def _remove(self, offset: Offset) -> None:
        if offset in self._open:
            if offset in self._dead:
                self._bury(offset)
            self._unindex(offset)
            del self._open[offset]
            del self._offsets[bisect_left(self._offsets, offset)]

    def _bury(self, offset: Offset) -> None:
        if len(self._buried) >= _BURIED_MAX:
            del self._buried[next(iter(self._buried))]
        self._buried[offset] = None

    def _put(self, offset: Offset, entry: Open) -> None:
        if offset in self._open:
            self._unindex(offset)
        else:
            insort(self._offsets, offset)
        self._open[offset] = entry
        match entry:
            case Leased():
                insort(self._deadlines, (entry.deadline, offset))
            case Waiting():
                insort(self._due, (entry.not_before, offset))
            case Dead():
                self._dead.add(offset)

    def _unindex(self, offset: Offset) -> None:
        match self._open[offset]:
            case Leased(deadline=deadline):
                _drop(self._deadlines, (deadline, offset))
            case Waiting(not_before=not_before):
                _drop(self._due, (not_before, offset))
            case Dead():
                self._dead.discard(offset)


def _drop(ordered: list[tuple[TimestampMs, Offset]], item: tuple[TimestampMs, Offset]) -> None:
    del ordered[bisect_left(ordered, item)]
