"""The results of requests to the transaction coordinator."""

from typing import assert_never

from moldau.model.errors import ErrorCode
from moldau.transactions import decide
from moldau.transactions.decisions import NoChange, Rejected
from moldau.transactions.events import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    Request,
    VerifyPartitions,
)
from moldau.transactions.records import StoredTransaction, TransactionState
from moldau.transactions.results import NeedsProducerId, PartitionsResult, ProducerResult, Result


def rejection(event: Request, error: ErrorCode) -> Result:
    match event:
        case InitProducer() | EndTransaction():
            return ProducerResult(error=error)
        case AddPartitions() | VerifyPartitions():
            return PartitionsResult(errors=dict.fromkeys(sorted(event.partitions), error))
        case _:
            assert_never(event)


def result_of(
    event: Request,
    decision: Rejected | NoChange | NeedsProducerId,
    stored: StoredTransaction | None,
) -> Result:
    """The result of a request that needs no further write."""
    if isinstance(decision, NeedsProducerId):
        return decision
    if isinstance(decision, Rejected) or stored is None:
        error = decision.error if isinstance(decision, Rejected) else ErrorCode.UNKNOWN_SERVER_ERROR
        return rejection(event, error)
    match event:
        case InitProducer() | EndTransaction():
            producer_id, epoch = decide.reported_producer(stored)
            return ProducerResult(
                error=ErrorCode.NONE, producer_id=producer_id, producer_epoch=epoch
            )
        case AddPartitions():
            return PartitionsResult(errors=dict.fromkeys(sorted(event.partitions), ErrorCode.NONE))
        case VerifyPartitions():
            is_open = stored.state is TransactionState.ONGOING
            known = stored.partitions if is_open else frozenset()
            return PartitionsResult(
                errors={
                    partition: (
                        ErrorCode.NONE if partition in known else ErrorCode.TRANSACTION_ABORTABLE
                    )
                    for partition in sorted(event.partitions)
                }
            )
        case _:
            assert_never(event)
