"""The state of a queue: which messages are settled, leased, waiting or dead.

    settled … settled │ open, settled, open, … │ not read yet
                    floor                     next

Every offset below `next` is either open, and in a table; or in a delay bucket; or settled:
acknowledged, moved to the dead-letter topic, or not a message. So acks in any order take no memory,
and the number of open messages is bounded. Only committed records change a state, by `apply`, which
uses neither a clock nor settings.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from moldau.leases.delay_buckets import BucketKey, DelayBucket
from moldau.model.ids import NO_EPOCH, Epoch, Offset, PartitionIndex, TimestampMs, TopicId


class QueueId(NamedTuple):
    """A queue group on a partition. With the topic's id: a recreated topic has another queue."""

    group: str
    topic_id: TopicId
    partition: PartitionIndex


class Leased(Struct, frozen=True):
    """Leased to a worker until the deadline."""

    attempts: int
    """Deliveries so far, including this one; part of the token."""
    holder: str
    deadline: TimestampMs
    epoch: Epoch
    """Of the leader that granted the lease; part of the token."""


class Waiting(Struct, frozen=True):
    """To be delivered, not before a given time."""

    attempts: int
    not_before: TimestampMs


class Dead(Struct, frozen=True):
    """Not delivered again; to be moved to the dead-letter topic."""

    attempts: int
    """0 for a message that could not be read."""
    reason: str


Open: TypeAlias = Leased | Waiting | Dead


class QueueRecord(Struct, frozen=True, kw_only=True):
    """A change of the state, or with `is_snapshot` the whole state."""

    queue: QueueId
    sequence: int
    """Number of the record in its queue, from 1."""
    epoch: Epoch
    next: Offset
    settled: tuple[Offset, ...] = ()
    """Open offsets that become settled; ascending. Empty in a snapshot."""
    opened: tuple[tuple[Offset, Open], ...] = ()
    """New or changed open offsets, ascending; other offsets that `next` moves past are settled."""
    is_snapshot: bool = False
    buckets: tuple[DelayBucket, ...] = ()
    """New or changed buckets, by key; an empty one is removed."""


T = TypeVar("T", Offset, tuple[TimestampMs, Offset])

_DEAD_LETTERED_MAX: Final = 1_000
"""Moved dead letters to remember: their workers may still send an ack."""


class QueueState:
    """The state of one queue. `epoch` is that of its last leader."""

    __slots__ = (
        "_bucket_floor",
        "_buckets",
        "_dead",
        "_dead_lettered",
        "_deadlines",
        "_due",
        "_offsets",
        "_open",
        "epoch",
        "next",
        "next_recall",
        "sequence",
    )

    def __init__(self) -> None:
        self.sequence = 0
        self.epoch: Epoch = NO_EPOCH
        self.next = Offset(0)
        """The first offset that was not read yet."""
        self._open: dict[Offset, Open] = {}
        # The same, sorted. Inserting into a list of some thousands is faster than a Python tree.
        self._offsets: list[Offset] = []
        self._deadlines: list[tuple[TimestampMs, Offset]] = []
        self._due: list[tuple[TimestampMs, Offset]] = []
        self._dead: set[Offset] = set()
        self._dead_lettered: dict[Offset, None] = {}
        """The last dead letters that were moved under this leader; not stored."""
        self._buckets: dict[BucketKey, DelayBucket] = {}
        self._bucket_floor = Offset(0)
        self.next_recall: DelayBucket | None = None
        """The bucket to take messages from first."""

    # ---- reading

    @property
    def exists(self) -> bool:
        return self.sequence > 0

    @property
    def floor(self) -> Offset:
        """Everything below is settled."""
        opened = self._offsets[0] if self._offsets else self.next
        return min(opened, self._bucket_floor) if self._buckets else opened

    @property
    def open(self) -> Mapping[Offset, Open]:
        return MappingProxyType(self._open)

    def get(self, offset: Offset) -> Open | None:
        return self._open.get(offset)

    @property
    def buckets(self) -> Mapping[BucketKey, DelayBucket]:
        return MappingProxyType(self._buckets)

    @property
    def bucketed_count(self) -> int:
        """Upper bound of the messages in delay buckets."""
        return sum(bucket.count for bucket in self._buckets.values())

    @property
    def leased_count(self) -> int:
        return len(self._deadlines)

    @property
    def waiting_count(self) -> int:
        return len(self._due)

    @property
    def dead(self) -> tuple[tuple[Offset, Dead], ...]:
        """Messages to move to the dead-letter topic, by offset."""
        found = ((offset, self._open[offset]) for offset in sorted(self._dead))
        return tuple((offset, entry) for offset, entry in found if isinstance(entry, Dead))

    @property
    def dead_count(self) -> int:
        return len(self._dead)

    def was_dead_lettered(self, offset: Offset) -> bool:
        """Whether it was recently moved to the dead-letter topic."""
        return offset in self._dead_lettered

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

    def due(self, now: TimestampMs) -> Iterator[tuple[Offset, Waiting]]:
        """Waiting messages that may be delivered at that time, by their time."""
        for time, offset in self._due:
            if time > now:
                return
            entry = self._open[offset]
            if isinstance(entry, Waiting):
                yield offset, entry

    def due_count(self, now: TimestampMs) -> int:
        """How many `due` has."""
        return bisect_left(self._due, (TimestampMs(now + 1), Offset(-1)))

    def open_below(self, end: Offset) -> tuple[Offset, ...]:
        return tuple(self._offsets[: bisect_left(self._offsets, end)])

    def next_expiry(self) -> TimestampMs | None:
        """Deadline of the next lease; in the past until `ExpireDue` is applied."""
        return self._deadlines[0][0] if self._deadlines else None

    def next_due(self) -> TimestampMs | None:
        """When the next waiting message may be delivered."""
        return self._due[0][0] if self._due else None

    # ---- changing

    def follows(self, record: QueueRecord) -> bool:
        """Whether the record is the next one.

        Any newer snapshot is, since loading begins with one. Only a snapshot begins an epoch, so
        late records of an earlier leader are recognized by their sequence.
        """
        if record.is_snapshot:
            return record.epoch >= self.epoch and record.sequence > self.sequence
        return self.exists and record.epoch == self.epoch and record.sequence == self.sequence + 1

    def apply(self, record: QueueRecord) -> bool:
        """Apply a committed record. False, without any change, if it is not the next one."""
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
        """In bulk: one by one, thousands of messages would block the event loop."""
        after = dict(record.opened)
        for offset in self._dead:
            if offset not in after:
                self._note_dead_lettered(offset)
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
        self._buckets = {bucket.key: bucket for bucket in record.buckets}
        self._index_buckets()
        self.next = record.next

    def _change(self, record: QueueRecord) -> None:
        seen = self.next
        self._remove_all(record.settled)
        if record.opened and record.opened[0][0] >= seen:
            self._put_all(record.opened)
        elif record.opened:
            # A settled offset stays settled, whatever the record contains: no ack is ever undone.
            self._put_all(
                [
                    (offset, entry)
                    for offset, entry in record.opened
                    if offset >= seen or offset in self._open or self._is_recalled(offset, record)
                ]
            )
        for bucket in record.buckets:
            if bucket.is_empty:
                self._buckets.pop(bucket.key, None)
            else:
                self._buckets[bucket.key] = bucket
        if record.buckets:
            self._index_buckets()
        self.next = max(seen, record.next)

    def _index_buckets(self) -> None:
        buckets = self._buckets.values()
        self._bucket_floor = min((bucket.first for bucket in buckets), default=Offset(0))
        # The longer span first: it may contain messages that belong in the other.
        self.next_recall = min(
            buckets, key=lambda bucket: (bucket.recall_at, -bucket.span_ms), default=None
        )

    def _is_recalled(self, offset: Offset, record: QueueRecord) -> bool:
        """Whether the record takes that offset out of a bucket."""
        return any(
            before.first <= offset < after.first
            for after in record.buckets
            if (before := self._buckets.get(after.key)) is not None
        )

    def _remove_all(self, offsets: Iterable[Offset]) -> None:
        """Those of them that are open; ascending."""
        opened = self._open
        removed: list[Offset] = []
        leases: list[tuple[TimestampMs, Offset]] = []
        for offset in offsets:
            entry = opened.pop(offset, None)
            if entry is None:
                continue
            removed.append(offset)
            if isinstance(entry, Leased):
                leases.append((entry.deadline, offset))
            else:
                if isinstance(entry, Dead):
                    self._note_dead_lettered(offset)
                self._unindex(offset, entry)
        leases.sort()
        _drop_all(self._deadlines, leases)
        _drop_all(self._offsets, removed)

    def _note_dead_lettered(self, offset: Offset) -> None:
        if len(self._dead_lettered) >= _DEAD_LETTERED_MAX:
            del self._dead_lettered[next(iter(self._dead_lettered))]
        self._dead_lettered[offset] = None

    def _put_all(self, entries: Iterable[tuple[Offset, Open]]) -> None:
        """Ascending."""
        opened = self._open
        new: list[Offset] = []
        leases: list[tuple[TimestampMs, Offset]] = []
        due: list[tuple[TimestampMs, Offset]] = []
        for offset, entry in entries:
            before = opened.get(offset)
            if before is None:
                new.append(offset)
            else:
                self._unindex(offset, before)
            opened[offset] = entry
            if isinstance(entry, Leased):
                leases.append((entry.deadline, offset))
            elif isinstance(entry, Waiting):
                due.append((entry.not_before, offset))
            else:
                self._dead.add(offset)
        leases.sort()
        due.sort()
        _insert_all(self._offsets, new)
        _insert_all(self._deadlines, leases)
        _insert_all(self._due, due)

    def _unindex(self, offset: Offset, entry: Open) -> None:
        if isinstance(entry, Leased):
            _drop_all(self._deadlines, [(entry.deadline, offset)])
        elif isinstance(entry, Waiting):
            _drop_all(self._due, [(entry.not_before, offset)])
        else:
            self._dead.discard(offset)


# A poll opens neighbours, and its worker settles them together: mostly, `items` are one run.


def _insert_all(ordered: list[T], items: list[T]) -> None:
    """`items` are sorted."""
    if not items:
        return
    if not ordered or ordered[-1] < items[0]:
        ordered += items
        return
    for item in items:
        insort(ordered, item)


def _drop_all(ordered: list[T], items: list[T]) -> None:
    """`items` are sorted, and all of them are in `ordered`."""
    if not items:
        return
    at = bisect_left(ordered, items[0])
    end = at + len(items)
    if ordered[at:end] == items:
        del ordered[at:end]
        return
    for item in items:
        del ordered[bisect_left(ordered, item)]
