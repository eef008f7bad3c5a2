"""InitProducerId (22): an id for an idempotent producer.

Without a transactional id every call gives a fresh id with epoch 0, also to a producer that names
the id it had (KIP-360): nothing ties the two together, as in Kafka.
"""

from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.registry import ApiKey

_UNSAID = -1


async def handle(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check(request)
    except RefusedError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=_UNSAID)
    try:
        producer_id = await call.broker.producer_ids.take()
    except RefusedError:
        # The cluster cannot tell one now. To this code every client asks again, also without
        # transactions, as Kafka's brokers answer it; to most others a producer ends.
        return InitProducerIdResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=_UNSAID
        )
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check(request: InitProducerIdRequest) -> None:
    if request.transactional_id == "":
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if request.transactional_id is not None:
        # The response has no message. Of the codes that clients do not retry, librdkafka takes
        # only the refusals of authorization for final.
        raise RefusedError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == _UNSAID) != (request.producer_epoch == _UNSAID):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together"
        )


API = Api(
    key=ApiKey.INIT_PRODUCER_ID,
    request=InitProducerIdRequest,
    versions=(0, 5),
    handle=handle,
    note="idempotent producers only: a transactional id is refused",
)
