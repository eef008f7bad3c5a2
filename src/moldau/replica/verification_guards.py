"""Owns who may open a transaction here: producers whose coordinator was asked, and has not ended
the transaction since.

Between the coordinator's word and the append the transaction may end: a marker that comes in takes
the guard away, and the batch that would open it anew, with nobody to end it, is refused (KIP-890).
"""

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader


class VerificationGuard:
    """One pending request to the coordinator. Valid while `VerificationGuards` holds it."""

    __slots__ = ("epoch", "made_at", "sequence_min")

    def __init__(self, epoch: ProducerEpoch, sequence: int, now: TimestampMs) -> None:
        self.epoch = epoch
        self.sequence_min = sequence
        """The lowest that was tried: a later batch must not come first because it had more luck."""
        self.made_at = now


class VerificationGuards:
    """Those of one partition, on its leader."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[ProducerId, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def take(
        self, producer: ProducerId, epoch: ProducerEpoch, sequence: int, now: TimestampMs
    ) -> VerificationGuard:
        """To be taken before the coordinator is asked. Raises RefusedError for an old epoch."""
        guard = self._guards.get(producer)
        if guard is None or guard.epoch < epoch:
            guard = self._guards[producer] = VerificationGuard(epoch, sequence, now)
        elif guard.epoch > epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer} has epoch {guard.epoch}, the batch {epoch}",
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
                f"producer {header.producer_id} has no transaction open here, "
                "or it ended in the meantime",
            )
        if header.base_sequence > guard.sequence_min:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: {guard.sequence_min} was tried and is to come "
                f"first, got {header.base_sequence}",
            )

    def drop(self, producer: ProducerId, *, epoch_min: int) -> None:
        """The producer's transaction ends; one of an epoch from epoch_min on is a later one."""
        guard = self._guards.get(producer)
        if guard is not None and guard.epoch < epoch_min:
            del self._guards[producer]

    def clear(self) -> None:
        self._guards.clear()

    def expire(self, before: TimestampMs) -> None:
        for producer in [each for each, guard in self._guards.items() if guard.made_at < before]:
            del self._guards[producer]
