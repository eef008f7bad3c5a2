"""Owns what one partition of `__queue_state` stores: the records of many queues, and who may write.

The leader of a topic's partition decides; the leader of the partition of `__queue_state` that the
queue hashes to stores. These may be two brokers, and a leader that stood still may not know that it
is none any more. So each record is judged here before it is appended: it must be the next one of
its queue, in the epoch that the queue is in, or begin a later epoch.

Kept are bytes, from the last snapshot on; only heads are looked at. Who leads the queue looks in.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from moldau.groups.queue.records import RecordHead, decode_head
from moldau.groups.queue.results import Refusal
from moldau.groups.queue.state import QueueId
from moldau.model.errors import CorruptionError

Stored: TypeAlias = tuple[bytes, bytes]
"""Key and value."""


class Ledger:
    """Load it (`replay`, then `finish_loading`); then judge, append, and apply what is committed.

    Between judging and applying records no other of the same queue may be judged.
    """

    __slots__ = ("_kept", "_loading")

    def __init__(self) -> None:
        self._kept: dict[QueueId, _Kept] = {}
        self._loading: dict[QueueId, dict[bytes, tuple[RecordHead, Stored]]] = {}

    # ---- loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log, in any order of keys, the last of each key last.

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
                self._kept[queue] = kept

    # ---- reading

    def queues(self) -> Iterator[QueueId]:
        return iter(self._kept)

    def stored(self, queue: QueueId) -> tuple[Stored, ...]:
        """What the leader of the topic's partition loads; nothing for a queue that is new."""
        kept = self._kept.get(queue)
        return () if kept is None else tuple(kept.records)

    # ---- writing

    def judge(self, *records: Stored) -> Refusal:
        """Whether these records of one queue may be appended, in one batch. NONE: they may.

        Raises CorruptionError for bytes that are no record.
        """
        heads = [_head(*record) for record in records]
        is_row = all(
            (after.queue, after.epoch, after.sequence)
            == (before.queue, before.epoch, before.sequence + 1)
            for before, after in pairwise(heads)
        )
        if not heads or not is_row:
            return Refusal.OUT_OF_STEP
        first = heads[0]
        kept = self._kept.get(first.queue)
        if kept is None:
            is_next = first.sequence == 1 and first.is_snapshot
        elif first.epoch < kept.head.epoch:
            return Refusal.FENCED
        else:
            is_next = kept.is_followed_by(first)
        return Refusal.NONE if is_next else Refusal.OUT_OF_STEP

    def apply(self, key: bytes, value: bytes) -> bool:
        """The record is committed. False: it was not judged, or something came in between."""
        if self.judge((key, value)) is not Refusal.NONE:
            return False
        head = _head(key, value)
        if head.is_snapshot:
            self._kept[head.queue] = _Kept(head, (key, value))
        else:
            self._kept[head.queue].add(head, (key, value))
        return True

    def forget(self, queue: QueueId) -> None:
        """The queue's tombstones are committed: its group or its topic is gone."""
        self._kept.pop(queue, None)


class _Kept:
    """The last snapshot of a queue and what came after; `head` is of the last record."""

    __slots__ = ("head", "records")

    def __init__(self, head: RecordHead, snapshot: Stored) -> None:
        self.head = head
        self.records = [snapshot]

    def is_followed_by(self, head: RecordHead) -> bool:
        """A later epoch begins with a snapshot: who writes has loaded all there was."""
        return head.sequence == self.head.sequence + 1 and (
            head.epoch == self.head.epoch or (head.epoch > self.head.epoch and head.is_snapshot)
        )

    def add(self, head: RecordHead, record: Stored) -> None:
        self.head = head
        self.records.append(record)


def _head(key: bytes, value: bytes) -> RecordHead:
    head = decode_head(key, value)
    if not isinstance(head, RecordHead):
        raise CorruptionError("bytes to be stored are no record of a queue")
    return head


def _load(records: list[tuple[RecordHead, Stored]]) -> _Kept | None:
    """From the last snapshot on. What is older was left by the compaction and counts no more."""
    kept = None
    for head, record in records:
        # There is one key for it, so there is one.
        if head.is_snapshot:
            kept = _Kept(head, record)
    if kept is None:
        # A queue that was forgotten, whose tombstones are compacted away in part.
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
