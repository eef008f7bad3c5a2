"""Decides requests as pure functions of the stored state.

A decision is to reply, to write a new state first, to wait until the current transaction has ended,
or to retry with a new producer id. Errors are Kafka's; where versions of an API expect different
codes, the Kafka handler translates them.

Clients get producer epochs up to 32,766. 32,767 is reserved for the markers of that last epoch,
after which a new producer id is used.
"""

from typing import Final

import msgspec

from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TIMESTAMP, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.control import TRANSACTIONS_V2
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.transactions.decisions import (
    NoChange,
    Rejected,
    TransactionDecision,
    WaitForEnd,
    WriteState,
)
from moldau.transactions.events import AddPartitions, EndTransaction, InitProducer, VerifyPartitions
from moldau.transactions.records import StoredTransaction, TransactionState
from moldau.transactions.results import NeedsProducerId

EPOCH_MAX = ProducerEpoch(2**15 - 1)
_FIRST_EPOCH: Final = ProducerEpoch(0)

State = TransactionState


FENCED: Final = Rejected(ErrorCode.PRODUCER_FENCED)
UNMAPPED: Final = Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
INVALID: Final = Rejected(ErrorCode.INVALID_TXN_STATE)


def is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX - 1


def _bumped(epoch: ProducerEpoch) -> ProducerEpoch:
    return ProducerEpoch(min(epoch + 1, EPOCH_MAX))


# ---- InitProducerId


def decide_init(
    stored: StoredTransaction | None, event: InitProducer, now_ms: TimestampMs
) -> TransactionDecision:
    if stored is None:
        # Also if the producer sends its id: the transactional id has expired.
        if event.new_producer_id == NO_PRODUCER_ID:
            return NeedsProducerId()
        return _initialize(event, now_ms, producer_id=event.new_producer_id, epoch=_FIRST_EPOCH)
    continues = event.producer_id != NO_PRODUCER_ID
    is_same = event.producer_id == stored.producer_id
    if continues and not is_same and not _is_predecessor(stored, event):
        return FENCED
    if stored.state.is_prepared:
        return WaitForEnd()
    if stored.state is State.ONGOING:
        if continues and event.producer_epoch != stored.producer_epoch:
            return FENCED
        return WriteState(aborted(stored, now_ms, last_epoch=NO_PRODUCER_EPOCH), retries=True)
    if not continues or (is_same and event.producer_epoch == stored.producer_epoch):
        return _next_epoch(stored, event, now_ms, continues=continues)
    if event.producer_epoch == stored.last_epoch != NO_PRODUCER_EPOCH:
        # A retry: the response was lost.
        return _initialize(
            event,
            now_ms,
            producer_id=stored.producer_id,
            epoch=stored.producer_epoch,
            last_epoch=stored.last_epoch,
            previous_id=stored.previous_producer_id,
        )
    return FENCED


def _is_predecessor(stored: StoredTransaction, event: InitProducer) -> bool:
    """Whether the client exhausted the previous id and missed the response with the new one."""
    return event.producer_id == stored.previous_producer_id and is_exhausted(event.producer_epoch)


def _next_epoch(
    stored: StoredTransaction, event: InitProducer, now_ms: TimestampMs, *, continues: bool
) -> TransactionDecision:
    last_epoch = stored.producer_epoch if continues else NO_PRODUCER_EPOCH
    if not is_exhausted(stored.producer_epoch):
        return _initialize(
            event,
            now_ms,
            producer_id=stored.producer_id,
            epoch=_bumped(stored.producer_epoch),
            last_epoch=last_epoch,
        )
    if event.new_producer_id == NO_PRODUCER_ID:
        return NeedsProducerId()
    return _initialize(
        event,
        now_ms,
        producer_id=event.new_producer_id,
        epoch=_FIRST_EPOCH,
        last_epoch=last_epoch,
        previous_id=stored.producer_id if continues else NO_PRODUCER_ID,
    )


def _initialize(
    event: InitProducer,
    now_ms: TimestampMs,
    *,
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    previous_id: ProducerId = NO_PRODUCER_ID,
) -> WriteState:
    return WriteState(
        StoredTransaction(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            previous_producer_id=previous_id,
            timeout_ms=event.timeout_ms,
            state=State.EMPTY,
            updated_at=now_ms,
        )
    )


# ---- partitions


def decide_add(
    stored: StoredTransaction | None, event: AddPartitions, now_ms: TimestampMs
) -> TransactionDecision:
    if stored is None:
        return UNMAPPED
    rejection = _producer_error(stored, event)
    if rejection is not None:
        return rejection
    if stored.state.is_prepared:
        return WaitForEnd()
    is_open = stored.state is State.ONGOING
    if event.partitions <= (stored.partitions if is_open else frozenset()):
        return NoChange()
    return WriteState(
        msgspec.structs.replace(
            stored,
            state=State.ONGOING,
            partitions=stored.partitions | event.partitions if is_open else event.partitions,
            # Requests before this transaction can no longer be retried.
            last_epoch=NO_PRODUCER_EPOCH,
            previous_producer_id=NO_PRODUCER_ID,
            started_at=stored.started_at if is_open else now_ms,
            updated_at=now_ms,
            client_version=event.client_version,
        )
    )


def decide_verify(stored: StoredTransaction | None, event: VerifyPartitions) -> TransactionDecision:
    """NoChange: the producer is right; the included partitions are in `stored`."""
    if stored is None:
        return UNMAPPED
    rejection = _producer_error(stored, event)
    if rejection is not None:
        return rejection
    return WaitForEnd() if stored.state.is_prepared else NoChange()


def _producer_error(
    stored: StoredTransaction, event: AddPartitions | VerifyPartitions | EndTransaction
) -> Rejected | None:
    reported = reported_producer(stored)
    if stored.state.is_prepared and (event.producer_id, event.producer_epoch) == reported:
        # The client already has its next epoch, before the markers are written.
        return None
    if event.producer_id != stored.producer_id:
        return UNMAPPED
    return None if event.producer_epoch == stored.producer_epoch else FENCED


# ---- the end


def decide_end(
    stored: StoredTransaction | None, event: EndTransaction, now_ms: TimestampMs
) -> TransactionDecision:
    if stored is None:
        return UNMAPPED
    if event.client_version >= TRANSACTIONS_V2:
        return _decide_end_v2(stored, event, now_ms)
    if event.producer_id != stored.producer_id:
        return UNMAPPED
    if event.producer_epoch != stored.producer_epoch:
        return FENCED
    match stored.state:
        case State.ONGOING:
            prepared = _prepared(stored, now_ms, is_commit=event.is_commit)
            # Partition leaders check the marker by the version of the deciding request.
            return WriteState(
                msgspec.structs.replace(prepared, client_version=event.client_version)
            )
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            return WaitForEnd() if _agrees(stored, event) else INVALID
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
            # A retry whose response was lost, or the end of an empty transaction: nothing to do.
            return NoChange() if _agrees(stored, event) else INVALID
        case State.EMPTY:
            return INVALID


def _decide_end_v2(
    stored: StoredTransaction, event: EndTransaction, now_ms: TimestampMs
) -> TransactionDecision:
    """With transactions V2 the epoch distinguishes a retried end from the next one."""
    is_retry = _is_repeated_end(stored, event)
    if not is_retry:
        rejection = _producer_error(stored, event)
        if rejection is not None:
            return rejection
        if stored.state.is_prepared:
            # The client's next end, sent before the markers of the current one are written.
            return WaitForEnd()
    match stored.state:
        case State.ONGOING:
            return _bump_and_end(stored, event, now_ms)
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            return WaitForEnd() if _agrees(stored, event) else INVALID
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT if is_retry:
            return NoChange() if _agrees(stored, event) else INVALID
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT | State.EMPTY:
            # No partitions were added, as far as is known here. An abort bumps the epoch, which
            # fences batches that are still in flight.
            return INVALID if event.is_commit else _bump_and_end(stored, event, now_ms)


def _is_repeated_end(stored: StoredTransaction, event: EndTransaction) -> bool:
    if stored.state in (State.ONGOING, State.EMPTY) or (
        event.producer_epoch != stored.last_epoch or event.producer_epoch < 0
    ):
        return False
    if event.producer_id == stored.producer_id:
        return event.producer_epoch + 1 == stored.producer_epoch
    return event.producer_id == stored.previous_producer_id and stored.producer_epoch == 0


def _bump_and_end(
    stored: StoredTransaction, event: EndTransaction, now_ms: TimestampMs
) -> TransactionDecision:
    next_id = NO_PRODUCER_ID
    if is_exhausted(stored.producer_epoch):
        if event.new_producer_id == NO_PRODUCER_ID:
            return NeedsProducerId()
        next_id = event.new_producer_id
    prepared = _prepared(stored, now_ms, is_commit=event.is_commit)
    return WriteState(
        msgspec.structs.replace(
            prepared,
            producer_epoch=_bumped(stored.producer_epoch),
            last_epoch=stored.producer_epoch,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=next_id,
            client_version=event.client_version,
        )
    )


def _agrees(stored: StoredTransaction, event: EndTransaction) -> bool:
    return event.is_commit == (stored.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT))


def _prepared(
    stored: StoredTransaction, now_ms: TimestampMs, *, is_commit: bool
) -> StoredTransaction:
    is_open = stored.state is State.ONGOING
    return msgspec.structs.replace(
        stored,
        state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
        partitions=stored.partitions if is_open else frozenset(),
        started_at=stored.started_at if is_open else now_ms,
        updated_at=now_ms,
    )


# ---- transitions without a request


def aborted(
    stored: StoredTransaction, now_ms: TimestampMs, *, last_epoch: ProducerEpoch
) -> StoredTransaction:
    """Abort and fence the producer: by a successor, or by its timeout."""
    return msgspec.structs.replace(
        _prepared(stored, now_ms, is_commit=False),
        producer_epoch=_bumped(stored.producer_epoch),
        last_epoch=last_epoch,
        previous_producer_id=NO_PRODUCER_ID,
    )


def timed_out(stored: StoredTransaction, now_ms: TimestampMs) -> StoredTransaction:
    # A V2 client sends the abort itself when it is fenced, and continues with the new epoch. An
    # older client must initialize again.
    bumps = stored.client_version >= TRANSACTIONS_V2 and not is_exhausted(stored.producer_epoch)
    last_epoch = stored.producer_epoch if bumps else NO_PRODUCER_EPOCH
    return aborted(stored, now_ms, last_epoch=last_epoch)


def completed(stored: StoredTransaction, now_ms: TimestampMs) -> StoredTransaction:
    """The state when every partition has its marker."""
    is_commit = stored.state is State.PREPARE_COMMIT
    ended = msgspec.structs.replace(
        stored,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        partitions=frozenset(),
        started_at=NO_TIMESTAMP,
        updated_at=now_ms,
    )
    if stored.next_producer_id == NO_PRODUCER_ID:
        return ended
    return msgspec.structs.replace(
        ended,
        producer_id=stored.next_producer_id,
        producer_epoch=_FIRST_EPOCH,
        previous_producer_id=stored.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def is_expired(stored: StoredTransaction, now_ms: TimestampMs, expiry_ms: int) -> bool:
    is_idle = stored.state is not State.ONGOING and not stored.state.is_prepared
    return is_idle and stored.updated_at + expiry_ms <= now_ms


def reported_producer(stored: StoredTransaction) -> tuple[ProducerId, ProducerEpoch]:
    """Producer id and epoch in the response to the request that led to this state."""
    if stored.next_producer_id != NO_PRODUCER_ID:
        return stored.next_producer_id, _FIRST_EPOCH
    return stored.producer_id, stored.producer_epoch
