"""Verification guards (KIP-890): only a verified transaction may be opened in a partition.

Between the coordinator's verification and the append the transaction may end: its marker then
removes the guard, and the batch is rejected. Otherwise it would open a transaction that never ends.
"""

from msgspec import Struct

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader


class VerificationGuard(Struct, eq=False):
    """One pending request to the coordinator. Valid while `VerificationGuards` holds it."""

    epoch: ProducerEpoch
    sequence_min: int
    """The lowest sequence tried: a later batch must not be appended before it."""
    made_at: TimestampMs


class VerificationGuards:
    """The guards of one partition, on its leader."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[ProducerId, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def take(
        self, producer: ProducerId, epoch: ProducerEpoch, sequence: int, now: TimestampMs
    ) -> VerificationGuard:
        """Take before the request to the coordinator. Raises RefusedError for an old epoch."""
        guard = self._guards.get(producer)
        if guard is None or guard.epoch < epoch:
            guard = self._guards[producer] = VerificationGuard(epoch, sequence, now)
        elif guard.epoch > epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer} is at epoch {guard.epoch}, the batch has epoch {epoch}",
            )
        guard.sequence_min = min(guard.sequence_min, sequence)
        return guard

    def check(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        """Raises RefusedError unless the batch may open a transaction."""
        if (
            guard is None
            or self._guards.get(header.producer_id) is not guard
            or guard.epoch != header.producer_epoch
        ):
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no open transaction in this partition, "
                "or it ended meanwhile",
            )
        if header.base_sequence > guard.sequence_min:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: expected sequence {guard.sequence_min}, which "
                f"was tried before, got {header.base_sequence}",
            )

    def drop(self, producer: ProducerId, *, epoch_min: int) -> None:
        """The producer's transaction ended; guards from epoch_min on belong to a later one."""
        guard = self._guards.get(producer)
        if guard is not None and guard.epoch < epoch_min:
            del self._guards[producer]

    def clear(self) -> None:
        self._guards.clear()

    def expire(self, before: TimestampMs) -> None:
        for producer in [each for each, guard in self._guards.items() if guard.made_at < before]:
            del self._guards[producer]
