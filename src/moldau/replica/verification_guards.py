"""Verification guards (KIP-890): only a verified transaction may be opened in a partition.

A guard belongs to one producer and one transactional id: the coordinator confirms that they belong
together. Without that, who may use any transactional id could write into the transaction of
another. The guard stays while its transaction is open, so each is verified once by each leader.

Between the coordinator's verification and the append the transaction may end: its marker then
removes the guard, and the batch is rejected. Otherwise it would open a transaction that never ends.
If leadership changes meanwhile, the guard says nothing of the transaction: the producer retries.
"""

from collections.abc import Callable

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader


class VerificationGuard:
    """One request to the coordinator. Valid while `VerificationGuards` holds it."""

    __slots__ = ("epoch", "is_lost", "is_verified", "made_at", "sequence_min")

    def __init__(self, epoch: ProducerEpoch, sequence_min: int, made_at: TimestampMs) -> None:
        self.epoch = epoch
        self.sequence_min = sequence_min
        """The lowest sequence tried: a later batch must not be appended before it."""
        self.made_at = made_at
        self.is_verified = False
        """A batch was admitted with it."""
        self.is_lost = False
        """Leadership changed since it was taken, and the transaction may be open still."""


class VerificationGuards:
    """The guards of one partition, on its leader."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[ProducerId, dict[str, VerificationGuard]] = {}
        """By producer and transactional id: attempts under other ids do not disturb the owner."""

    def __len__(self) -> int:
        return sum(map(len, self._guards.values()))

    def is_verified(self, producer: ProducerId, transactional_id: str) -> bool:
        """Whether the producer's open transaction was verified under that transactional id."""
        guard = self._guards.get(producer, {}).get(transactional_id)
        return guard is not None and guard.is_verified

    def take(
        self, header: BatchHeader, transactional_id: str, now: TimestampMs
    ) -> VerificationGuard:
        """Take before the request to the coordinator. Raises RefusedError for an old epoch."""
        producer, epoch = header.producer_id, header.producer_epoch
        sequence = header.base_sequence
        guards = self._guards.setdefault(producer, {})
        guard = guards.get(transactional_id)
        if guard is None or guard.epoch < epoch:
            guard = guards[transactional_id] = VerificationGuard(epoch, sequence, now)
        elif guard.epoch > epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer} is at epoch {guard.epoch}, the batch has epoch {epoch}",
            )
        guard.sequence_min = min(guard.sequence_min, sequence)
        return guard

    def check(self, header: BatchHeader, guard: VerificationGuard | None, *, is_open: bool) -> None:
        """Raises RefusedError unless the batch may join the open transaction, or open one."""
        if guard is None and is_open:
            return
        if guard is not None and guard.is_lost:
            # The retry asks the coordinator again. A final error would end a sound transaction.
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"leadership changed while the transaction of producer {header.producer_id} was "
                "verified: retry",
            )
        if (
            guard is None
            or guard not in self._guards.get(header.producer_id, {}).values()
            or guard.epoch != header.producer_epoch
        ):
            raise RefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no open transaction in this partition, "
                "or it ended meanwhile",
            )
        if not is_open and header.base_sequence > guard.sequence_min:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: expected sequence {guard.sequence_min}, which "
                f"was tried before, got {header.base_sequence}",
            )
        guard.is_verified = True

    def drop(self, producer: ProducerId, *, epoch_min: int) -> None:
        """The producer's transaction ended; guards from epoch_min on belong to a later one."""
        if producer in self._guards:
            self._keep(producer, lambda guard: guard.epoch >= epoch_min)

    def clear(self) -> None:
        """Leadership changed, or the log was truncated: another leader may have ended them."""
        for guards in self._guards.values():
            for guard in guards.values():
                guard.is_lost = True
        self._guards.clear()

    def expire(self, before: TimestampMs) -> None:
        for producer in list(self._guards):
            self._keep(producer, lambda guard: guard.made_at >= before)

    def _keep(self, producer: ProducerId, is_kept: Callable[[VerificationGuard], bool]) -> None:
        kept = {name: one for name, one in self._guards[producer].items() if is_kept(one)}
        if kept:
            self._guards[producer] = kept
        else:
            del self._guards[producer]
