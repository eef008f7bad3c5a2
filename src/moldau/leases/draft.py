"""The changes of a decision that is being made, as an overlay over an unchanged state."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final

import msgspec

from moldau.leases.config import QueueConfig
from moldau.leases.delay_buckets import BUCKETS_MAX, SPANS_MS, BucketKey, DelayBucket, bucket_keys
from moldau.leases.records import SLOTS
from moldau.leases.state import Dead, Open, QueueId, QueueRecord, QueueState
from moldau.model.ids import Epoch, Offset, TimestampMs

SNAPSHOT_EVERY: Final = SLOTS
"""A record whose sequence is a multiple of this is a snapshot."""


class Draft:
    """Reads see the changes made so far, so a token that is repeated in a command is valid once."""

    __slots__ = ("_buckets", "_opened", "_settled", "config", "next", "queue", "state")

    def __init__(self, state: QueueState, config: QueueConfig, queue: QueueId) -> None:
        self.state = state
        self.config = config
        self.queue = queue
        self.next = state.next
        self._opened: dict[Offset, Open] = {}
        self._settled: set[Offset] = set()
        self._buckets: dict[BucketKey, DelayBucket] = {}

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

    def put_all(self, offsets: Iterable[Offset], entry: Open) -> None:
        """The same for all of them."""
        self._opened.update(dict.fromkeys(offsets, entry))

    # ---- buckets

    def bucket(self, key: BucketKey) -> DelayBucket | None:
        found = self._buckets.get(key) or self.state.buckets.get(key)
        return None if found is None or found.is_empty else found

    def bucket_for(self, time: TimestampMs, below_ms: int = SPANS_MS[0] + 1) -> DelayBucket | None:
        """The bucket for a message of that time, with a span shorter than `below_ms`."""
        for key in bucket_keys(time):
            if key[0] < below_ms and (found := self.bucket(key)) is not None:
                return found
        return None

    def put_bucket(self, bucket: DelayBucket) -> None:
        self._buckets[bucket.key] = bucket

    def add_to_bucket(
        self, offset: Offset, time: TimestampMs, bucket: DelayBucket | None, span_ms: int
    ) -> bool:
        """Add to the bucket, or to a new one of that span. False: there are too many buckets."""
        end = Offset(offset + 1)
        if bucket is None:
            bucket = DelayBucket(span_ms, TimestampMs(time - time % span_ms), offset, end, 0)
            if len({**self.state.buckets, **self._buckets}) >= BUCKETS_MAX:
                return False
        self.put_bucket(
            msgspec.structs.replace(
                bucket,
                # Never below the range; if it were, a duplicate is better than a loss.
                first=min(bucket.first, offset),
                end=max(bucket.end, end),
                count=bucket.count + 1,
            )
        )
        return True

    # ---- the record

    def record(self) -> QueueRecord | None:
        """None if nothing changes."""
        is_same = not (self._opened or self._settled or self._buckets)
        if is_same and self.next == self.state.next:
            return None
        sequence = self.state.sequence + 1
        # By the sequence alone, so that it does not depend on when the queue was loaded.
        if sequence % SNAPSHOT_EVERY == 0:
            return self.snapshot(self.state.epoch)
        return QueueRecord(
            queue=self.queue,
            sequence=sequence,
            epoch=self.state.epoch,
            next=self.next,
            settled=tuple(sorted(self._settled)),
            opened=tuple(sorted(self._opened.items(), key=_offset_of)),
            buckets=tuple(self._buckets[key] for key in sorted(self._buckets)),
        )

    def snapshot(self, epoch: Epoch) -> QueueRecord:
        """The whole state after the change: the first record of an epoch, or a periodic one."""
        after = {**self.state.open, **self._opened}
        for offset in self._settled:
            after.pop(offset, None)
        buckets = {**self.state.buckets, **self._buckets}
        return QueueRecord(
            queue=self.queue,
            sequence=self.state.sequence + 1,
            epoch=epoch,
            next=self.next,
            opened=tuple(sorted(after.items(), key=_offset_of)),
            is_snapshot=True,
            buckets=tuple(buckets[key] for key in sorted(buckets) if not buckets[key].is_empty),
        )


_offset_of: Final[Callable[[tuple[Offset, Open]], Offset]] = itemgetter(0)
