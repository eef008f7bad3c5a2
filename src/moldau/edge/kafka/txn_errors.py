"""Maps errors of transactions to codes that the client's version knows."""

from moldau.edge.kafka.handler import Call
from moldau.model.errors import ErrorCode


def producer_error(
    call: Call, error: ErrorCode, *, fenced_from: int, abortable_from: int
) -> ErrorCode:
    """`fenced_from`, `abortable_from`: the first versions that know these codes."""
    if error is ErrorCode.PRODUCER_FENCED and call.version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and call.version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return error
