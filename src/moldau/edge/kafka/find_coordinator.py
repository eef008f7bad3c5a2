"""FindCoordinator (10): which broker looks after a group."""

from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from moldau.wire.registry import ApiKey

GROUP, TRANSACTION = 0, 1
_KEYS_FROM = 4
_UNSUPPORTED_IS_FINAL_FROM = 3
_NOWHERE = -1


async def handle(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if call.version >= _KEYS_FROM:
        return FindCoordinatorResponse(
            coordinators=[
                await _find(call, request.key_type, key) for key in request.coordinator_keys
            ]
        )
    found = await _find(call, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find(call: Call, key_type: int, key: str) -> FoundCoordinator:
    try:
        if key_type != GROUP:
            raise _refusal(call, key_type)
        # A client that finds its coordinator expects to commit there at once.
        coordinator = await call.broker.groups.find_coordinator(key)
        broker = call.broker.image.brokers.get(coordinator)
        if broker is None:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {coordinator} has left the cluster"
            )
    except RefusedError as error:
        return FoundCoordinator(
            key=key,
            node_id=_NOWHERE,
            host="",
            port=_NOWHERE,
            error_code=error.code,
            error_message=str(error),
        )
    return FoundCoordinator(key=key, node_id=broker.id, host=broker.host, port=broker.port)


def _refusal(call: Call, key_type: int) -> RefusedError:
    if key_type != TRANSACTION:
        return RefusedError(
            ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}"
        )
    # librdkafka, which asks at version 2 at most, asks again and again unless the refusal is about
    # authorization; it shows the message. The Java client shows the message for any other code.
    code = (
        ErrorCode.UNSUPPORTED_VERSION
        if call.version >= _UNSUPPORTED_IS_FINAL_FROM
        else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    return RefusedError(code, "transactions are not served by this version of the broker")


API = Api(
    key=ApiKey.FIND_COORDINATOR,
    request=FindCoordinatorRequest,
    versions=(0, 6),
    handle=handle,
    note="groups only: coordinators of transactions and share groups are refused",
)
