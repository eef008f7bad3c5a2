"""EndTxn (26): commit or abort. From version 5 on the response has the producer's next epoch."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.txn_errors import producer_error
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.records.control import TRANSACTIONS_V2
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_RISING_FROM = 5


async def handle(call: Call, request: EndTxnRequest) -> EndTxnResponse:
    try:
        ended = await call.session.transactions.end(
            request.transactional_id,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            is_commit=request.committed,
            client_version=TRANSACTIONS_V2 if call.version >= _RISING_FROM else 0,
        )
    except RefusedError as error:
        return EndTxnResponse(error_code=error.code)
    if ended.error is not ErrorCode.NONE:
        return EndTxnResponse(
            error_code=producer_error(call, ended.error, fenced_from=2, abortable_from=4)
        )
    return EndTxnResponse(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)


API = Api(EndTxnRequest, versions=(0, 5), handle=handle)
