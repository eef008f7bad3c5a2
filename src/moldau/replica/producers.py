"""The producer state of a partition: last batches, epochs, open transactions.

A producer numbers its records per partition. A batch that repeats one of the last five is a retry
whose response was lost: the response names the offset of the original. A gap means that a batch was
lost, and is rejected.

The first transactional batch of a producer opens a transaction; the coordinator's marker ends it.
The last stable offset is the first offset of the oldest transaction that is open, or whose marker
is not committed yet.

The state follows *appended* batches: it is rebuilt from the last snapshot and the headers and
markers after it, and rolled back when the log is truncated.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from moldau.records.control import TRANSACTIONS_V2, EndMarker
from moldau.replica.aborted_transactions import AbortedTransactions

REMEMBERED_BATCHES = 5
NO_TRANSACTION: Final = Offset(-1)
NO_COORDINATOR: Final = -1
_SEQUENCE_MASK = 0x7FFFFFFF
_NO_MARKER: Final = Offset(-1)


class RememberedBatch(NamedTuple):
    """Sequences and offsets of one appended batch."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs


class ProducerState:
    """The newest epoch of one producer and its last batches, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "first", "marked_at", "seen_at")

    def __init__(self, epoch: ProducerEpoch, seen_at: TimestampMs) -> None:
        self.epoch = epoch
        self.seen_at = seen_at
        self.batches: list[RememberedBatch] = []
        self.first = NO_TRANSACTION
        """First offset of its open transaction."""
        self.coordinator_epoch = NO_COORDINATOR
        self.marked_at = _NO_MARKER
        """Offset of its last marker: the source of `epoch` if there are no batches."""


def next_sequence(state: ProducerState) -> int:
    """The sequence that the next batch of its epoch must begin with."""
    if not state.batches:
        return 0
    return (state.batches[-1].last_sequence + 1) & _SEQUENCE_MASK


class EndedTransaction(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    marker: Offset
    first: Offset


class ProducerTable:
    """All producers of one partition."""

    def __init__(self) -> None:
        self._states: dict[ProducerId, ProducerState] = {}
        self._open: dict[Offset, ProducerId] = {}
        """Open transactions by their first offset, oldest first."""
        self._unstable: dict[Offset, None] = {}
        """First offsets of those and of `ended`, lowest first."""
        self.ended: deque[EndedTransaction] | None = None
        """Made when needed: an empty deque takes 760 bytes, and most partitions have none."""
        self.first_unstable: Offset | None = None
        self.last_marker = _NO_MARKER
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[tuple[ProducerId, ProducerState]]:
        return iter(self._states.items())

    def get(self, producer: ProducerId) -> ProducerState | None:
        return self._states.get(producer)

    @property
    def open(self) -> Mapping[Offset, ProducerId]:
        """Producers of open transactions by their first offset, oldest first."""
        return MappingProxyType(self._open)

    def is_open(self, producer: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here in that epoch."""
        state = self._states.get(producer)
        return state is not None and state.first >= 0 and state.epoch == epoch

    def is_new(self, header: BatchHeader) -> bool:
        """Whether a batch is neither a retry nor of an old epoch."""
        state = self._states.get(header.producer_id)
        if state is None or state.epoch < header.producer_epoch:
            return True
        return state.epoch == header.producer_epoch and _original(state, header) is None

    # ---- checks

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The original batch if this is a retry; None if it is the next one.

        Raises RefusedError for an old epoch, a gap, or a batch outside of the open transaction.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            # Unknown or expired: it may start with any sequence (KIP-360).
            return None
        if header.producer_epoch < state.epoch:
            _reject_epoch(header.producer_id, header.producer_epoch, state.epoch, "the batch")
        sequence = header.base_sequence
        if sequence < 0:
            # Written by a coordinator, which uses no sequences.
            return None
        expected = 0
        if header.producer_epoch == state.epoch:
            if (original := _original(state, header)) is not None:
                return original
            expected = next_sequence(state)
        if state.first >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            # Nobody has verified it. A later epoch would fence the marker of the transaction.
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, "
                "but the batch is not transactional",
            )
        if sequence != expected:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: epoch {header.producer_epoch} continues with "
                f"sequence {expected}, got {sequence}",
            )
        return None

    def check_marker(
        self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> bool:
        """Whether a marker has to be written; False if it already was.

        Raises RefusedError for an earlier epoch of the producer or the coordinator.
        """
        state = self._states.get(producer)
        if state is None:
            # Even without a transaction here, it fences batches of earlier epochs.
            return True
        if epoch < state.epoch:
            _reject_epoch(producer, epoch, state.epoch, "the marker")
        if coordinator_epoch < state.coordinator_epoch:
            raise RefusedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {producer}: the marker has coordinator epoch {coordinator_epoch}, but "
                f"the partition has already seen {state.coordinator_epoch}",
            )
        if epoch > state.epoch:
            return True
        if state.first < 0:
            # A repeated marker; written only if it brings a newer coordinator epoch.
            return coordinator_epoch > state.coordinator_epoch
        if transaction_version >= TRANSACTIONS_V2:
            # A late marker of the previous transaction, whose end raised the epoch (KIP-1228).
            _reject_epoch(producer, epoch, state.epoch, "of its open transaction; the marker")
        return True

    # ---- appended batches

    def appended(
        self, header: BatchHeader, now: TimestampMs, marker: EndMarker | None = None
    ) -> None:
        """Record a batch that is now in the log; `header` has its final offsets.

        `marker` is the content of a control batch; None if compaction emptied it.
        """
        state = self._states.get(header.producer_id)
        if state is None or header.producer_epoch > state.epoch:
            state = self._begin(header, now, state)
        state.seen_at = now
        if header.attributes & TRANSACTIONAL_BIT:
            if header.attributes & CONTROL_BIT:
                state.marked_at = self.last_marker = header.base_offset
                if marker is not None:
                    self._end(state, header.producer_id, header.base_offset, marker)
                return
            # A batch without records was emptied by compaction: its transaction has ended.
            if state.first < 0 and header.record_count:
                self._open_at(state, header.producer_id, header.base_offset)
        batches = state.batches
        batches.append(
            RememberedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )
        if len(batches) > REMEMBERED_BATCHES:
            del batches[0]

    def _begin(
        self, header: BatchHeader, now: TimestampMs, before: ProducerState | None
    ) -> ProducerState:
        state = self._states[header.producer_id] = ProducerState(header.producer_epoch, now)
        if before is not None:
            state.first = before.first
            state.coordinator_epoch = before.coordinator_epoch
            state.marked_at = before.marked_at
        return state

    def _open_at(self, state: ProducerState, producer: ProducerId, first: Offset) -> None:
        state.first = first
        self._open[first] = producer
        self._unstable[first] = None
        if self.first_unstable is None:
            self.first_unstable = first

    def _end(
        self, state: ProducerState, producer: ProducerId, offset: Offset, marker: EndMarker
    ) -> None:
        state.coordinator_epoch = marker.coordinator_epoch
        first = state.first
        if first < 0:
            return
        state.first = NO_TRANSACTION
        del self._open[first]
        if not marker.is_commit:
            stable = next(iter(self._open), Offset(offset + 1))
            self.aborted.append(producer, first, offset, stable)
        if self.ended is None:
            self.ended = deque()
        self.ended.append(EndedTransaction(offset, first))

    def settle(self, watermark: Offset) -> None:
        """Everything below `watermark` is committed, including markers."""
        ended = self.ended
        while ended and ended[0].marker < watermark:
            del self._unstable[ended.popleft().first]
        self.first_unstable = next(iter(self._unstable), None)

    def replay(
        self,
        headers: Iterable[BatchHeader],
        now: TimestampMs,
        read_marker: Callable[[BatchHeader], EndMarker | None],
    ) -> None:
        """Replay batches of the log after a restart.

        They count as seen now, not at their timestamp, which clients choose: an active producer
        that copies old records would expire, and its retries would be stored twice.
        """
        for header in headers:
            if header.producer_id >= 0:
                marker = read_marker(header) if header.attributes & CONTROL_BIT else None
                self.appended(header, now, marker)

    # ---- truncation

    def truncate(self, offset: Offset) -> bool:
        """Forget batches from `offset` on, which were removed from the log.

        False if the table must be rebuilt: a marker was removed, or a producer has no batches left
        here although the log may hold earlier ones.

        A producer with some batches left may lack older ones. Those were acknowledged, because a
        producer has no more in flight than the table remembers, so they are not retried.
        """
        if self.last_marker >= offset:
            return False
        while self._open and (first := next(reversed(self._open))) >= offset:
            self._states[self._open.pop(first)].first = NO_TRANSACTION
            del self._unstable[first]
        self.first_unstable = next(iter(self._unstable), None)
        is_enough = True
        for state in self._states.values():
            batches = state.batches
            if batches and batches[-1].last_offset >= offset:
                state.batches = [batch for batch in batches if batch.last_offset < offset]
                is_enough = is_enough and bool(state.batches)
        return is_enough

    def below(self, offset: Offset) -> "ProducerTable":
        """The state from batches below `offset`, for a log that begins there.

        It may lack transactions that were open there: their batches above `offset` are in the log,
        and open them again.
        """
        table = ProducerTable()
        for producer, state in self._states.items():
            batches = [batch for batch in state.batches if batch.last_offset < offset]
            # Leave out an epoch that began above: batches of the previous one still follow.
            if batches or (not state.batches and state.marked_at < offset):
                kept = table._states[producer] = ProducerState(state.epoch, state.seen_at)
                kept.batches = batches
                kept.coordinator_epoch = state.coordinator_epoch
                kept.marked_at = state.marked_at if state.marked_at < offset else _NO_MARKER
                if state.first < offset:
                    kept.first = state.first
        table._index_open()
        return table

    def _index_open(self) -> None:
        """Rebuild the ordered index of open transactions from the states."""
        states = self._states.items()
        firsts = {state.first: producer for producer, state in states if state.first >= 0}
        self._open = dict(sorted(firsts.items()))
        unstable = [*self._open, *(each.first for each in self.ended or ())]
        self._unstable = dict.fromkeys(sorted(unstable))
        self.first_unstable = next(iter(self._unstable), None)

    def expire(self, before: TimestampMs) -> int:
        """Forget producers that were idle since `before` and have no open transaction."""
        expired = [
            producer
            for producer, state in self._states.items()
            if state.seen_at < before and state.first < 0
        ]
        for producer in expired:
            del self._states[producer]
        return len(expired)

    # ---- snapshots

    def restore(
        self,
        states: dict[ProducerId, ProducerState],
        ended: Iterable[EndedTransaction],
        last_marker: Offset,
        aborted: AbortedTransactions,
    ) -> None:
        self._states = states
        self.ended = deque(ended) or None
        self.last_marker = last_marker
        self.aborted = aborted
        self._index_open()


def _original(state: ProducerState, header: BatchHeader) -> RememberedBatch | None:
    """The batch that this one of the same epoch repeats.

    A transactional batch does not repeat one outside of any transaction: nobody has verified who
    wrote that, and the producer would lose an acknowledged batch.
    """
    sequence, last = header.base_sequence, header.last_sequence
    for batch in state.batches:
        if batch.base_sequence == sequence >= 0 and batch.last_sequence == last:
            is_plain = state.marked_at < batch.base_offset and not (
                0 <= state.first <= batch.base_offset
            )
            return None if is_plain and header.attributes & TRANSACTIONAL_BIT else batch
    return None


def _reject_epoch(producer: ProducerId, epoch: int, known: int, what: str) -> None:
    raise RefusedError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer} is at epoch {known}, {what} has epoch {epoch}",
    )
