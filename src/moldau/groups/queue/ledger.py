"""Owns what one partition of `__queue_state` stores: the state of many queues, and who may write.

The leader of a topic's partition decides; the leader of the partition of `__queue_state` that the
queue hashes to stores. These may be two brokers, and a leader that stood still may not know that it
is none any more. So each record is judged here before it is appended: it must be the next one of
its queue, in the epoch that the queue is in, or begin a later epoch.
"""

from collections.abc import Iterator

from moldau.groups.queue.answers import Refusal
from moldau.groups.queue.records import decode
from moldau.groups.queue.state import QueueId, QueueRecord, QueueState
from moldau.model.errors import CorruptionError


class Ledger:
    """Load it (`replay`, then `finish_loading`); then judge, append, and apply what is committed.

    Between judging and applying a record no other of the same queue may be judged.
    """

    __slots__ = ("_loading", "_states")

    def __init__(self) -> None:
        self._states: dict[QueueId, QueueState] = {}
        self._loading: dict[QueueId, dict[bytes, QueueRecord]] = {}

    # ---- loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log, in any order of keys, the last of each key last.

        Raises CorruptionError.
        """
        record = decode(key, value)
        match record:
            case QueueRecord():
                self._loading.setdefault(record.queue, {})[key] = record
            case QueueId():
                self._loading.get(record, {}).pop(key, None)
            case None:
                # Of a later version; whoever wrote it can do without it.
                return

    def finish_loading(self) -> None:
        """Raises CorruptionError if a record is missing: an ack may have been in it."""
        loading, self._loading = self._loading, {}
        for queue, records in loading.items():
            state = _load(queue, list(records.values()))
            if state is not None:
                self._states[queue] = state

    # ---- reading

    def queues(self) -> Iterator[QueueId]:
        return iter(self._states)

    def state(self, queue: QueueId) -> QueueState | None:
        return self._states.get(queue)

    def snapshot(self, queue: QueueId) -> QueueRecord | None:
        """What the leader of the topic's partition begins with; None for a queue that is new."""
        state = self._states.get(queue)
        return None if state is None else state.snapshot(queue)

    # ---- writing

    def judge(self, record: QueueRecord) -> Refusal:
        """Whether the record may be appended. NONE: it may."""
        state = self._states.get(record.queue)
        if state is None:
            is_first = record.sequence == 1 and record.is_snapshot
            return Refusal.NONE if is_first else Refusal.OUT_OF_STEP
        if record.epoch < state.epoch:
            return Refusal.FENCED
        is_next = record.sequence == state.sequence + 1
        return Refusal.NONE if is_next and state.follows(record) else Refusal.OUT_OF_STEP

    def apply(self, record: QueueRecord) -> bool:
        """The record is committed. False: it was not judged, or something came in between."""
        if self.judge(record) is not Refusal.NONE:
            return False
        return self._states.setdefault(record.queue, QueueState()).apply(record)

    def forget(self, queue: QueueId) -> None:
        """The queue's tombstones are committed: its group or its topic is gone."""
        self._states.pop(queue, None)


def _load(queue: QueueId, records: list[QueueRecord]) -> QueueState | None:
    """From the last snapshot on. What is older was left by the compaction and counts no more."""
    state = QueueState()
    for record in records:
        if record.is_snapshot:
            state.apply(record)
    if not state.exists:
        # A queue that was forgotten, whose tombstones are compacted away in part.
        return None
    changes = [record for record in records if record.sequence > state.sequence]
    for record in sorted(changes, key=lambda change: change.sequence):
        if not state.apply(record):
            raise CorruptionError(
                f"record {record.sequence} of the queue of group {queue.group!r} does not follow "
                f"record {state.sequence}"
            )
    return state
