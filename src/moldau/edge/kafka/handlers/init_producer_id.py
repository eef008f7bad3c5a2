"""InitProducerId (22): an id and an epoch for a producer, idempotent or transactional.

Without a transactional id every call returns a new id with epoch 0, also to a producer that sends
its previous id (KIP-360), as in Kafka. With one, the coordinator of that id responds, and the
previous producer is fenced.
"""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.txn_errors import producer_error
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NOT_GIVEN = -1


async def handle(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check(request)
    except RefusedError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=_NOT_GIVEN)
    if request.transactional_id is not None:
        return await _init_transactional(call, request, request.transactional_id)
    try:
        producer_id = await call.session.producer_ids.take()
    except RefusedError as error:
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=_NOT_GIVEN)
        # Every client retries after this code, also without transactions; Kafka's brokers use it,
        # too. Most other codes are fatal for a producer.
        return InitProducerIdResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=_NOT_GIVEN
        )
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    call: Call, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    try:
        found = await call.session.transactions.init_producer(
            transactional_id,
            request.transaction_timeout_ms,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
        )
    except RefusedError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=_NOT_GIVEN)
    return InitProducerIdResponse(
        error_code=producer_error(call, found.error, fenced_from=4, abortable_from=5),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
    )


def _check(request: InitProducerIdRequest) -> None:
    if request.transactional_id == "":
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if (request.producer_id == _NOT_GIVEN) != (request.producer_epoch == _NOT_GIVEN):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together"
        )


API = Api(InitProducerIdRequest, versions=(0, 5), handle=handle)
