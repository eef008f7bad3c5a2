"""The records of many queues in one partition of `__queue_state`, and the check of new ones.

The leader of a topic's partition decides about its queues; the leader of the `__queue_state`
partition that a queue hashes to stores the records. These may be two brokers, and a stale leader
may not know that it was replaced. So each record is checked here before it is appended: it must be
the next one of its queue, in the queue's epoch, or start a later epoch.

Records are kept as bytes, from the last snapshot on; only their heads are decoded here.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from moldau.leases.records import RecordHead, decode_head
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId
from moldau.model.errors import CorruptionError

Stored: TypeAlias = tuple[bytes, bytes]
"""Key and value."""


class Ledger:
    """Load it (`replay`, then `finish_loading`); then `check`, append, and `apply` once committed.

    Between `check` and `apply`, no other records of the same queue may be checked.
    """

    __slots__ = ("_loading", "_queues")

    def __init__(self) -> None:
        self._queues: dict[QueueId, _StoredQueue] = {}
        self._loading: dict[QueueId, dict[bytes, tuple[RecordHead, Stored]]] = {}

    # ---- loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Load a record of the log; keys in any order, the last record of each key last.

        Raises CorruptionError.
        """
        head = decode_head(key, value)
        if isinstance(head, RecordHead) and value is not None:
            self._loading.setdefault(head.queue, {})[key] = (head, (key, value))
        elif isinstance(head, QueueId):
            self._loading.get(head, {}).pop(key, None)

    def finish_loading(self) -> None:
        """Raises CorruptionError if a record is missing: an ack may have been in it."""
        loading, self._loading = self._loading, {}
        for queue, records in loading.items():
            kept = _load(list(records.values()))
            if kept is not None:
                self._queues[queue] = kept

    # ---- reading

    def queues(self) -> Iterator[QueueId]:
        return iter(self._queues)

    def stored(self, queue: QueueId) -> tuple[Stored, ...]:
        """What the leader of the topic's partition loads; empty for a new queue."""
        kept = self._queues.get(queue)
        return () if kept is None else tuple(kept.records)

    # ---- writing

    def check(self, *records: Stored) -> Refusal:
        """Whether these records of one queue may be appended as one batch. NONE: they may.

        Raises CorruptionError for bytes that cannot be decoded.
        """
        return self._check([_head(*record) for record in records])

    def _check(self, heads: list[RecordHead]) -> Refusal:
        is_consecutive = all(
            (after.queue, after.epoch, after.sequence)
            == (before.queue, before.epoch, before.sequence + 1)
            for before, after in pairwise(heads)
        )
        if not heads or not is_consecutive:
            return Refusal.OUT_OF_STEP
        first = heads[0]
        kept = self._queues.get(first.queue)
        if kept is None:
            is_next = first.sequence == 1 and first.is_snapshot
        elif first.epoch < kept.head.epoch:
            return Refusal.FENCED
        else:
            is_next = kept.is_followed_by(first)
        return Refusal.NONE if is_next else Refusal.OUT_OF_STEP

    def apply(self, key: bytes, value: bytes) -> bool:
        """The record is committed. False: it was not checked, or another one came in between."""
        head = _head(key, value)
        if self._check([head]) is not Refusal.NONE:
            return False
        if head.is_snapshot:
            self._queues[head.queue] = _StoredQueue(head, (key, value))
        else:
            self._queues[head.queue].add(head, (key, value))
        return True

    def forget(self, queue: QueueId) -> None:
        """The queue's tombstones are committed: its group or topic was deleted."""
        self._queues.pop(queue, None)


class _StoredQueue:
    """The last snapshot of a queue and the changes after it; `head` is the last record's."""

    __slots__ = ("head", "records")

    def __init__(self, head: RecordHead, snapshot: Stored) -> None:
        self.head = head
        self.records = [snapshot]

    def is_followed_by(self, head: RecordHead) -> bool:
        """A later epoch begins with a snapshot, so its writer has loaded everything."""
        return head.sequence == self.head.sequence + 1 and (
            head.epoch == self.head.epoch or (head.epoch > self.head.epoch and head.is_snapshot)
        )

    def add(self, head: RecordHead, record: Stored) -> None:
        self.head = head
        self.records.append(record)


def _head(key: bytes, value: bytes) -> RecordHead:
    head = decode_head(key, value)
    if not isinstance(head, RecordHead):
        raise CorruptionError("cannot decode a queue record that is to be stored")
    return head


def _load(records: list[tuple[RecordHead, Stored]]) -> _StoredQueue | None:
    """From the last snapshot on; older records are obsolete and not yet compacted."""
    kept = None
    for head, record in records:
        # All snapshots have the same key, so there is one at most.
        if head.is_snapshot:
            kept = _StoredQueue(head, record)
    if kept is None:
        # A deleted queue, some of whose tombstones were compacted away.
        return None
    changes = [found for found in records if found[0].sequence > kept.head.sequence]
    for head, record in sorted(changes, key=lambda found: found[0].sequence):
        if not kept.is_followed_by(head):
            raise CorruptionError(
                f"record {head.sequence} of the queue of group {head.queue.group!r} does not "
                f"follow record {kept.head.sequence}"
            )
        kept.add(head, record)
    return kept
