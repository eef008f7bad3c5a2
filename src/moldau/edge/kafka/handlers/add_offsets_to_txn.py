"""AddOffsetsToTxn (25): adds the offsets of a group to a producer's transaction."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.txn_errors import producer_error
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def handle(call: Call, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    try:
        if not request.group_id:
            raise RefusedError(ErrorCode.INVALID_GROUP_ID)
        error = await call.session.transactions.add_offsets(
            request.transactional_id,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            request.group_id,
        )
    except RefusedError as refused:
        error = refused.code
    return AddOffsetsToTxnResponse(
        error_code=producer_error(call, error, fenced_from=2, abortable_from=4)
    )


API = Api(AddOffsetsToTxnRequest, versions=(0, 4), handle=handle)
