"""Owns a change in the making: what a decision wants, over a state that stays as it is."""

from typing import Final

import msgspec

from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.delay_buckets import (
    BUCKETS_MAX,
    SPANS_MS,
    BucketKey,
    DelayBucket,
    bucket_keys,
)
from moldau.groups.queue.records import SLOTS
from moldau.groups.queue.state import Dead, Open, QueueId, QueueRecord, QueueState
from moldau.model.ids import Epoch, Offset, TimestampMs

SNAPSHOT_EVERY: Final = SLOTS
"""Each record whose number is a multiple of it holds the whole state."""


class Draft:
    """Read through it and a decision sees what it has decided so far: a token named twice in one
    command is good once."""

    __slots__ = ("_opened", "_settled", "_shelves", "config", "next", "queue", "state")

    def __init__(self, state: QueueState, config: QueueConfig, queue: QueueId) -> None:
        self.state = state
        self.config = config
        self.queue = queue
        self.next = state.next
        self._opened: dict[Offset, Open] = {}
        self._settled: set[Offset] = set()
        self._shelves: dict[BucketKey, DelayBucket] = {}

    @property
    def died(self) -> tuple[Offset, ...]:
        return tuple(
            sorted(offset for offset, entry in self._opened.items() if isinstance(entry, Dead))
        )

    def get(self, offset: Offset) -> Open | None:
        if offset in self._settled:
            return None
        entry = self._opened.get(offset)
        return self.state.get(offset) if entry is None else entry

    def settle(self, offset: Offset) -> None:
        self._opened.pop(offset, None)
        self._settled.add(offset)

    def put(self, offset: Offset, entry: Open) -> None:
        self._opened[offset] = entry

    # ---- shelves

    def shelf(self, key: BucketKey) -> DelayBucket | None:
        found = self._shelves.get(key) or self.state.shelves.get(key)
        return None if found is None or found.is_empty else found

    def shelf_of(self, time: TimestampMs, below_ms: int = SPANS_MS[0] + 1) -> DelayBucket | None:
        """The one that a message of that time belongs onto; of a span shorter than `below_ms`."""
        for key in bucket_keys(time):
            if key[0] < below_ms and (found := self.shelf(key)) is not None:
                return found
        return None

    def put_shelf(self, shelf: DelayBucket) -> None:
        self._shelves[shelf.key] = shelf

    def shelve(
        self, offset: Offset, time: TimestampMs, shelf: DelayBucket | None, span_ms: int
    ) -> bool:
        """Onto the shelf, or onto a new one of that span. False: there are too many shelves."""
        end = Offset(offset + 1)
        if shelf is None:
            shelf = DelayBucket(span_ms, TimestampMs(time - time % span_ms), offset, end, 0)
            if len({**self.state.shelves, **self._shelves}) >= BUCKETS_MAX:
                return False
        self.put_shelf(
            msgspec.structs.replace(
                shelf,
                # Below its stretch it never is; if it were, twice is better than never.
                first=min(shelf.first, offset),
                end=max(shelf.end, end),
                count=shelf.count + 1,
            )
        )
        return True

    # ---- the record

    def record(self) -> QueueRecord | None:
        """None if nothing changes."""
        is_same = not (self._opened or self._settled or self._shelves)
        if is_same and self.next == self.state.next:
            return None
        sequence = self.state.sequence + 1
        # By the number alone: whoever loads the queue knows when, whatever it was loaded from.
        if sequence % SNAPSHOT_EVERY == 0:
            return self.snapshot(self.state.epoch)
        return QueueRecord(
            queue=self.queue,
            sequence=sequence,
            epoch=self.state.epoch,
            next=self.next,
            settled=tuple(sorted(self._settled)),
            opened=tuple(sorted(self._opened.items(), key=_offset_of)),
            shelves=tuple(self._shelves[key] for key in sorted(self._shelves)),
        )

    def snapshot(self, epoch: Epoch) -> QueueRecord:
        """All that will be, as the first record of an epoch or as one of those in between."""
        after = {**self.state.open, **self._opened}
        for offset in self._settled:
            after.pop(offset, None)
        shelves = {**self.state.shelves, **self._shelves}
        return QueueRecord(
            queue=self.queue,
            sequence=self.state.sequence + 1,
            epoch=epoch,
            next=self.next,
            opened=tuple(sorted(after.items(), key=_offset_of)),
            is_snapshot=True,
            shelves=tuple(shelves[key] for key in sorted(shelves) if not shelves[key].is_empty),
        )


def _offset_of(item: tuple[Offset, Open]) -> Offset:
    return item[0]
