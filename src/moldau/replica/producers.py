"""Owns what a partition remembers of idempotent producers: the last five batches of each.

A producer numbers its records per partition. A batch that repeats one of the last five is a retry
whose reply was lost: it is answered with the offset of the original. A gap means that something
was lost on the way, and is refused. The state follows *appended* batches, so it is rebuilt from
the log's headers, from the last snapshot on, and goes back when a log is cut.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader

REMEMBERED_BATCHES = 5
_SEQUENCE_MASK = 0x7FFFFFFF


class RememberedBatch(NamedTuple):
    """Where one batch of a producer went."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs


class ProducerState:
    """The newest epoch of one producer and its last batches, oldest first."""

    __slots__ = ("batches", "epoch", "seen_at")

    def __init__(self, epoch: ProducerEpoch, seen_at: TimestampMs) -> None:
        self.epoch = epoch
        self.seen_at = seen_at
        self.batches: list[RememberedBatch] = []


class ProducerTable:
    """All producers of one partition."""

    def __init__(self) -> None:
        self._states: dict[ProducerId, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer: ProducerId) -> ProducerState | None:
        return self._states.get(producer)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The original, if the batch is a retry of it; None if it is the next one.

        Raises RefusedError for an old epoch or a gap.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            # Unknown here, perhaps expired: any sequence may start (KIP-360).
            return None
        if header.producer_epoch < state.epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {state.epoch}, "
                f"the batch {header.producer_epoch}",
            )
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"epoch {header.producer_epoch} starts at {header.base_sequence}, not 0",
                )
            return None
        for batch in state.batches:
            if (
                batch.base_sequence == header.base_sequence
                and batch.last_sequence == header.last_sequence
            ):
                return batch
        if not state.batches:
            return None
        expected = (state.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        if header.base_sequence != expected:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: expected {expected}, got {header.base_sequence}",
            )
        return None

    def appended(self, header: BatchHeader, now: TimestampMs) -> None:
        """Remember a batch that is now in the log; `header` carries its final offsets."""
        state = self._states.get(header.producer_id)
        if state is None or header.producer_epoch > state.epoch:
            state = ProducerState(header.producer_epoch, now)
            self._states[header.producer_id] = state
        state.seen_at = now
        if header.is_control:
            return
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

    def replay(self, headers: Iterable[BatchHeader], now: TimestampMs) -> None:
        """Follow batches of the log after a restart.

        They count as seen now: clients choose the time in a batch, and a producer that copies old
        records would be forgotten, and its retries doubled, while it is at work.
        """
        for header in headers:
            if header.producer_id >= 0:
                self.appended(header, now)

    def cut(self, offset: Offset) -> bool:
        """Forget batches from `offset` on, which the log has lost.

        False if that is not enough: a producer has nothing left here, although the log may still
        hold earlier batches of it. The table is to be built anew then.
        """
        is_enough = True
        for state in self._states.values():
            batches = state.batches
            if batches and batches[-1].last_offset >= offset:
                state.batches = [batch for batch in batches if batch.last_offset < offset]
                is_enough = is_enough and bool(state.batches)
        return is_enough

    def below(self, offset: Offset) -> "ProducerTable":
        """What is known from batches below `offset`, for a log that begins there."""
        table = ProducerTable()
        for producer, state in self._states.items():
            batches = [batch for batch in state.batches if batch.last_offset < offset]
            if batches or not state.batches:
                kept = table._states[producer] = ProducerState(state.epoch, state.seen_at)
                kept.batches = batches
        return table

    def expire(self, before: TimestampMs) -> int:
        """Forget producers that were silent since `before`."""
        expired = [producer for producer, state in self._states.items() if state.seen_at < before]
        for producer in expired:
            del self._states[producer]
        return len(expired)

    # ---- snapshots

    def encode(self) -> bytes:
        rows = [
            (producer, state.epoch, state.seen_at, state.batches)
            for producer, state in self._states.items()
        ]
        return msgspec.msgpack.encode((1, rows))

    @classmethod
    def decode(cls, payload: bytes) -> "ProducerTable":
        table = cls()
        try:
            version, rows = msgspec.msgpack.decode(payload, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise CorruptionError(f"producer snapshot cannot be read: {error}") from None
        if version != 1:
            raise CorruptionError(f"producer snapshot of version {version}; this broker knows 1")
        for producer, epoch, seen_at, batches in rows:
            state = ProducerState(ProducerEpoch(epoch), TimestampMs(seen_at))
            state.batches = [
                RememberedBatch(base, last, Offset(first), Offset(end), TimestampMs(time))
                for base, last, first, end, time in batches
            ]
            table._states[ProducerId(producer)] = state
        return table


_Snapshot = tuple[int, list[tuple[int, int, int, list[tuple[int, int, int, int, int]]]]]
